// Attention with an output gate, also in a window: the interpreter against the formula.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "program/interpreter.h"
#include "program/plan_builder_for_test.h"
#include "program/rows_for_test.h"

namespace adder {
namespace {

using test::ExpectNear;
using test::PlanBuilder;
using test::Rows;

constexpr int64_t kHidden = 7;
constexpr size_t kHeads = 4;
constexpr size_t kKvHeads = 2;
constexpr size_t kDim = 6;
const std::vector<int32_t> kTokens{3, 11, 0, 7, 7, 12, 5};

PlanBuilder AttentionPlan(int64_t window, bool gate) {
  PlanBuilder builder = test::StartPlan(13, kHidden);
  Attention a;
  a.heads = kHeads;
  a.kv_heads = kKvHeads;
  a.head_dim = kDim;
  a.scale = 0.8f;
  a.window = window;
  a.output_gate = gate;
  a.qkv = builder.Linear("qkv", a.qkv_rows(), kHidden, true);
  a.output = builder.Linear("o_proj", kHidden, kHeads * kDim);
  test::AddBlock(builder, 0, {a});
  return builder;
}

Rows Until(const PlanBuilder& builder, const std::string& op) {
  const auto executor = MakeInterpreter(builder.Lower());
  return test::RowsUntil(*executor, op, executor->CreateSequence(), kTokens);
}

TEST(AttentionGate, EqualsTheFormula) {
  for (const size_t window : {size_t{0}, size_t{1}, size_t{3}, size_t{50}}) {
    for (const bool gate : {false, true}) {
      const PlanBuilder builder = AttentionPlan(static_cast<int64_t>(window), gate);
      const Rows qkv = Until(builder, "layers.0.attention.qkv");
      ASSERT_EQ(qkv[0].size(), (kHeads * (gate ? 2 : 1) + 2 * kKvHeads) * kDim);
      Rows expected(kTokens.size());
      for (size_t t = 0; t < kTokens.size(); ++t) {
        const size_t first = window > 0 && t + 1 > window ? t + 1 - window : 0;
        for (size_t head = 0; head < kHeads; ++head) {
          const size_t k = (kHeads + head / (kHeads / kKvHeads)) * kDim;
          const size_t v = k + kKvHeads * kDim;
          std::vector<double> sum(kDim);
          double total = 0;
          for (size_t s = first; s <= t; ++s) {
            double score = 0;
            for (size_t d = 0; d < kDim; ++d) score += qkv[t][head * kDim + d] * qkv[s][k + d];
            const double weight = std::exp(0.8 * score);
            total += weight;
            for (size_t d = 0; d < kDim; ++d) sum[d] += weight * qkv[s][v + d];
          }
          for (size_t d = 0; d < kDim; ++d) {
            const size_t g = (kHeads + 2 * kKvHeads + head) * kDim + d;
            expected[t].push_back(sum[d] / total / (gate ? 1 + std::exp(-qkv[t][g]) : 1.0));
          }
        }
      }
      ExpectNear(Until(builder, "layers.0.attention.attend"), expected);
    }
  }
}

TEST(AttentionGate, IsChecked) {
  const auto expect = [](const auto& change, const std::string& words) {
    Plan plan = AttentionPlan(3, true).plan;
    change(plan, std::get<Attention>(plan.blocks[0].mixers[0]));
    try {
      ValidatePlan(plan);
      ADD_FAILURE() << "accepted; expected a message with " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect([](Plan&, Attention& a) { a.output_gate = false; }, "qkv is");
}

TEST(AttentionGate, IsPrinted) {
  EXPECT_NE(PlanString(AttentionPlan(3, true).plan).find("output_gate"), std::string::npos);
  EXPECT_NE(ProgramString(AttentionPlan(3, true).Lower()).find(", output gate"), std::string::npos);
}

}  // namespace
}  // namespace adder
