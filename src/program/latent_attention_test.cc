// Latent attention: lowered, verified, costed, and run by the interpreter. Expectations of values
// are computed here from keys and values of every head, not from the latents alone.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "core/error.h"
#include "program/interpreter.h"
#include "program/plan_builder_for_test.h"
#include "program/rows_for_test.h"

namespace adder {
namespace {

using test::ExpectNear;
using test::PlanBuilder;
using test::Rows;

// heads 2, latent 5, nope_dim 3, rope_dim 4, value_dim 6; q_rank 8, or 0 without a low rank.
LatentAttention TestLatent(PlanBuilder& builder, int64_t hidden, int64_t q_rank) {
  LatentAttention a;
  a.heads = 2;
  a.latent = 5;
  a.nope_dim = 3;
  a.rope_dim = 4;
  a.value_dim = 6;
  a.q_rank = q_rank;
  a.scale = 0.7f;
  a.rope = Rope{4, 10000.0, "default", {1.0f, 0.3f}, true};
  if (q_rank > 0) {
    a.q_a = builder.Linear("l.q_a", q_rank, hidden, true);
    a.q_norm = builder.Norm("l.q_norm", q_rank);
  }
  a.q_b = builder.Linear("l.q_b", 14, q_rank > 0 ? q_rank : hidden);
  a.kv_a = builder.Linear("l.kv_a", 9, hidden, true);
  a.kv_norm = builder.Norm("l.kv_norm", 5);
  for (const char* head : {"0", "1"}) {
    a.absorb.push_back(builder.Matrix(std::string("l.absorb") + head, 5, 3));
    a.expand.push_back(builder.Matrix(std::string("l.expand") + head, 6, 5));
  }
  a.output = builder.Linear("l.o_proj", hidden, 12);
  return a;
}

PlanBuilder OneLayer(int64_t q_rank = 8) {
  PlanBuilder builder = test::StartPlan(13, 7);
  test::AddBlock(builder, 0, {TestLatent(builder, 7, q_rank)});
  return builder;
}

const std::vector<int32_t> kTokens{3, 11, 0, 7, 7, 12, 5};

struct Runner {
  explicit Runner(const PlanBuilder& builder)
      : plan(builder.plan), weights(builder.Bind()), executor(MakeInterpreter(builder.Lower())) {}

  Rows Until(const std::string& op) {
    const SequenceId id = executor->CreateSequence();
    const Rows rows = test::RowsUntil(*executor, op, id, kTokens);
    executor->FreeSequence(id);
    return rows;
  }
  // The output of every head for every token, as the paper's formulas give it.
  Rows Expected() {
    const auto& a = std::get<LatentAttention>(plan.blocks[0].mixers[0]);
    const Rows q = Until("layers.0.latent.q_b");
    const Rows kv = Until("layers.0.latent.kv_a");
    Rows out(kTokens.size());
    for (size_t t = 0; t < kTokens.size(); ++t) {
      for (size_t head = 0; head < 2; ++head) {
        std::vector<double> query(q[t].begin() + 7 * head, q[t].begin() + 7 * (head + 1));
        Turn(t, query.data() + 3);
        std::vector<double> sums(6, 0.0);
        double total = 0;
        for (size_t p = 0; p <= t; ++p) {
          double mean = 0;
          for (size_t l = 0; l < 5; ++l) mean += kv[p][l] * kv[p][l] / 5;
          std::vector<double> c;
          for (size_t l = 0; l < 5; ++l) {
            c.push_back(kv[p][l] / std::sqrt(mean + a.kv_norm.eps) * V(a.kv_norm.weight)[l]);
          }
          std::vector<double> key;
          for (size_t n = 0; n < 3; ++n) {
            double sum = 0;
            for (size_t l = 0; l < 5; ++l) sum += W(a.absorb[head], l, n) * c[l];
            key.push_back(sum);
          }
          key.insert(key.end(), kv[p].begin() + 5, kv[p].end());
          Turn(p, key.data() + 3);
          double dot = 0;
          for (size_t d = 0; d < key.size(); ++d) dot += query[d] * key[d];
          const double weight = std::exp(0.7 * dot);
          total += weight;
          for (size_t v = 0; v < 6; ++v) {
            for (size_t l = 0; l < 5; ++l) sums[v] += weight * W(a.expand[head], v, l) * c[l];
          }
        }
        for (const double sum : sums) out[t].push_back(sum / total);
      }
    }
    return out;
  }
  // Neighbours are pairs.
  static void Turn(size_t position, double* x) {
    const double angles[] = {1.0 * static_cast<double>(position),
                             static_cast<double>(0.3f) * static_cast<double>(position)};
    for (size_t i = 0; i < 2; ++i) {
      const double first = x[2 * i];
      const double second = x[2 * i + 1];
      x[2 * i] = first * std::cos(angles[i]) - second * std::sin(angles[i]);
      x[2 * i + 1] = first * std::sin(angles[i]) + second * std::cos(angles[i]);
    }
  }
  const std::vector<float>& V(VectorId id) const {
    return weights->vectors[static_cast<size_t>(id)];
  }
  double W(MatrixId id, size_t row, size_t col) const {
    return test::WeightAt(*weights, id, row, col);
  }

  Plan plan;
  std::shared_ptr<const BoundWeights> weights;
  std::unique_ptr<Executor> executor;
};

TEST(LatentAttentionProgram, GoldenOpList) {
  const Program program = OneLayer().Lower();
  EXPECT_EQ(test::OpList(program),
            "embed -> residual\n"
            "layers.0.latent.q_a -> latent.q_a\n"
            "layers.0.latent.kv_a -> latent.kv_a\n"
            "layers.0.latent.q_b -> latent.q_b\n"
            "layers.0.latent.absorb -> latent.absorb\n"
            "layers.0.latent.attend -> latent.attend\n"
            "layers.0.latent.expand -> latent.expand\n"
            "layers.0.latent.o_proj -> residual\n"
            "head -> logits\n");
}

TEST(LatentAttentionProgram, EqualsAttentionToKeysAndValuesOfEveryHead) {
  Runner runner(OneLayer());
  ExpectNear(runner.Until("layers.0.latent.expand"), runner.Expected());
  Runner direct(OneLayer(0));
  ExpectNear(direct.Until("layers.0.latent.expand"), direct.Expected());
}

TEST(LatentAttentionProgram, CostsLatentsNotKeysAndValues) {
  const Program program = OneLayer().Lower();
  const OpCost attend = CostOf(program, program.FindOp("layers.0.latent.attend"), 3, 1, 10);
  EXPECT_EQ(attend.state_bytes, (10 + 3) * 9 * 4);
  EXPECT_EQ(attend.weight_bytes, 5 * 4);
  EXPECT_EQ(attend.flops, 2 * 2 * (9 + 5) * (3 * 10 + 6));
  const OpCost expand = CostOf(program, program.FindOp("layers.0.latent.expand"), 3, 1, 10);
  EXPECT_EQ(expand.weight_bytes, 2 * 6 * 5 * 4);
  EXPECT_EQ(expand.flops, 3 * 2 * 2 * 6 * 5);
  EXPECT_NE(ProgramString(program).find("latent attention, heads 2, latent 5 + 4, rope"),
            std::string::npos);
}

TEST(LatentAttentionProgram, MistakesAreFound) {
  const auto expect_bad = [](const std::string& name, auto change, const std::string& words) {
    Program program = OneLayer().Lower();
    change(program.ops[static_cast<size_t>(program.FindOp(name))].body);
    try {
      VerifyProgram(program);
      ADD_FAILURE() << "accepted; expected a message with " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const std::string attend = "layers.0.latent.attend";
  expect_bad(
      attend, [](OpBody& op) { std::get<LatentAttentionOp>(op).state = -1; }, "it has no KV state");
  expect_bad(
      attend, [](OpBody& op) { std::get<LatentAttentionOp>(op).mixer.latent = 4; },
      "latent.absorb");
  expect_bad(
      attend, [](OpBody& op) { std::get<LatentAttentionOp>(op).mixer.rope->rotary_dim = 6; },
      "rotary dimension");
  const std::string absorb = "layers.0.latent.absorb";
  expect_bad(
      absorb, [](OpBody& op) { std::get<HeadsLinearOp>(op).step = 12; },
      "columns outside its input");
  expect_bad(
      absorb, [](OpBody& op) { std::get<HeadsLinearOp>(op).matrices.clear(); }, "it has no heads");
  expect_bad(
      absorb, [](OpBody& op) { std::get<HeadsLinearOp>(op).matrices[1] = 0; }, "head matrix");
}

}  // namespace
}  // namespace adder
