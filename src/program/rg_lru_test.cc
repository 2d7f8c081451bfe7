// RG-LRU as a program: its ops, checks and costs, and the interpreter against the formulas.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/error.h"
#include "program/interpreter.h"
#include "program/plan_builder_for_test.h"
#include "program/rows_for_test.h"

namespace adder {
namespace {

using test::ExpectNear;
using test::NamedRandom;
using test::PlanBuilder;
using test::Rows;

constexpr int64_t kHidden = 7;
constexpr size_t kHeads = 2;
constexpr size_t kBlock = 3;
constexpr size_t kWidth = kHeads * kBlock;
const std::vector<int32_t> kTokens{3, 11, 0, 7, 7, 12, 5};

PlanBuilder LruPlan() {
  PlanBuilder builder = test::StartPlan(13, kHidden);
  const auto vector = [&](const char* name, int64_t size, float scale, float offset) {
    return builder.Vector(name, NamedRandom(name).Values(size, scale, offset));
  };
  RgLru m;
  m.width = kWidth;
  m.heads = kHeads;
  m.d_conv = 4;
  m.decay_scale = 5;
  m.in_proj = builder.Linear("in_proj", 2 * kWidth, kHidden, true);
  m.conv_weight = vector("conv", 4 * kWidth, 0.6f, 0);
  m.conv_bias = vector("conv_bias", kWidth, 0.3f, 0);
  m.input_weight = vector("wi", kWidth * kBlock, 0.9f, 0);
  m.input_bias = vector("bi", kWidth, 0.4f, 0);
  m.recurrent_weight = vector("wr", kWidth * kBlock, 0.9f, 0);
  m.recurrent_bias = vector("br", kWidth, 0.4f, 0);
  m.decay = vector("decay", kWidth, 2.0f, -2.0f);
  m.out_proj = builder.Linear("out_proj", kHidden, kWidth, true);
  test::AddBlock(builder, 0, {m});
  return builder;
}

TEST(RgLruProgram, GoldenOpList) {
  const Program program = LruPlan().Lower();
  EXPECT_EQ(test::OpList(program),
            "embed -> residual\n"
            "layers.0.rg_lru.in_proj -> rg_lru.in_proj\n"
            "layers.0.rg_lru.conv -> rg_lru.conv\n"
            "layers.0.rg_lru.scan -> rg_lru.scan\n"
            "layers.0.rg_lru.out_proj -> residual\n"
            "head -> logits\n");
  EXPECT_NE(ProgramString(program).find("rg-lru scan, heads 2 x 3, gate gelu_tanh"),
            std::string::npos);
}

TEST(RgLruProgram, ScanMatchesTheFormula) {
  const PlanBuilder builder = LruPlan();
  const auto weights = builder.Bind();
  const auto executor = MakeInterpreter(builder.Lower());
  const auto& m = std::get<RgLru>(builder.plan.blocks[0].mixers[0]);
  const auto until = [&](const std::string& op) {
    const SequenceId id = executor->CreateSequence();
    Rows rows = test::RowsUntil(*executor, "layers.0.rg_lru." + op, id, kTokens);
    executor->FreeSequence(id);
    return rows;
  };
  const auto v = [&](VectorId id, size_t i) -> double {
    return weights->vectors[static_cast<size_t>(id)][i];
  };
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const Rows projected = until("in_proj");
  const Rows x = until("conv");
  // The convolution has no activation.
  double sum = v(m.conv_bias, 0);
  for (size_t lag = 0; lag < 4; ++lag) {
    sum += v(m.conv_weight, (3 - lag) * kWidth) * projected[5 - lag][0];
  }
  EXPECT_NEAR(x[5][0], sum, 1e-5);

  Rows expected(kTokens.size(), std::vector<double>(kWidth));
  for (size_t c = 0; c < kWidth; ++c) {
    double h = 0;
    for (size_t t = 0; t < kTokens.size(); ++t) {
      double input = v(m.input_bias, c);
      double recurrent = v(m.recurrent_bias, c);
      const size_t head = c / kBlock * kBlock;
      for (size_t i = 0; i < kBlock; ++i) {
        const size_t at = (head + i) * kBlock + c - head;
        input += v(m.input_weight, at) * x[t][head + i];
        recurrent += v(m.recurrent_weight, at) * x[t][head + i];
      }
      const double a = std::exp(-5 * sigmoid(recurrent) * std::log(1 + std::exp(v(m.decay, c))));
      // The first token comes in whole.
      h = a * h + (t == 0 ? 1 : std::sqrt(1 - a * a)) * sigmoid(input) * x[t][c];
      const double y = projected[t][kWidth + c];
      expected[t][c] =
          h * 0.5 * y * (1 + std::tanh(std::sqrt(2 / M_PI) * (y + 0.044715 * y * y * y)));
    }
  }
  ExpectNear(until("scan"), expected);
}

TEST(RgLruProgram, ChunksChangeNothing) {
  test::ExpectChunksChangeNothing(*MakeInterpreter(LruPlan().Lower()), kTokens);
}

TEST(RgLruProgram, VerifierFindsFaults) {
  const auto expect = [](const std::function<void(RgLruOp&)>& change, const std::string& words) {
    Program program = LruPlan().Lower();
    const int scan = program.FindOp("layers.0.rg_lru.scan");
    change(std::get<RgLruOp>(program.ops[static_cast<size_t>(scan)].body));
    try {
      VerifyProgram(program);
      ADD_FAILURE() << "accepted; expected a message with " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect([](RgLruOp& op) { op.state = 0; }, "its lru state is 'conv'");
  expect([](RgLruOp& op) { op.projected = op.convolved; }, "12 wide rows");
  expect([](RgLruOp& op) { op.mixer.heads = 4; }, "heads do not divide");
  expect([](RgLruOp& op) { op.mixer.heads = 3; }, "its input weight has 18");
  expect([](RgLruOp& op) { op.mixer.decay = op.mixer.input_weight; }, "its decay has 18");
}

TEST(RgLruProgram, Cost) {
  const Program program = LruPlan().Lower();
  const OpCost scan = CostOf(program, program.FindOp("layers.0.rg_lru.scan"), 5, 2, 9);
  EXPECT_EQ(scan.weight_bytes, (2 * 18 + 3 * 6) * 4);
  EXPECT_EQ(scan.state_bytes, 2 * 2 * 6 * 4);
  EXPECT_EQ(scan.flops, 5 * (4 * 18 + 5 * 6));
}

TEST(RgLruProgram, PlansAreChecked) {
  const auto expect = [](const std::function<void(RgLru&)>& change, const std::string& words) {
    Plan plan = LruPlan().plan;
    change(std::get<RgLru>(plan.blocks[0].mixers[0]));
    try {
      ValidatePlan(plan);
      ADD_FAILURE() << "accepted; expected a message with " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect([](RgLru& m) { m.width = 0; }, "width is 0");
  expect([](RgLru& m) { m.heads = 4; }, "not a multiple of heads");
  expect([](RgLru& m) { m.d_conv = 0; }, "d_conv is 0");
  expect([](RgLru& m) { m.decay_scale = INFINITY; }, "decay_scale is inf");
  expect([](RgLru& m) { m.heads = 3; }, "input_weight is");
  expect([](RgLru& m) { m.in_proj = m.out_proj; }, "in_proj is");
  expect([](RgLru& m) { m.recurrent_bias = m.recurrent_weight; }, "recurrent_bias is");
  EXPECT_NE(PlanString(LruPlan().plan)
                .find("RgLru(width=6 heads=2 d_conv=4+bias decay_scale=5 in_proj=[12x7]+bias "
                      "gate=gelu_tanh out_proj=[7x6]+bias)"),
            std::string::npos);
  const StateLayout layout = MakeStateLayout(LruPlan().plan);
  ASSERT_EQ(layout.recurrent.size(), 2u);
  EXPECT_EQ(layout.recurrent[1].name, "lru");
  EXPECT_EQ(layout.recurrent[1].shape, (Shape{6}));
}

}  // namespace
}  // namespace adder
