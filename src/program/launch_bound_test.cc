#include "program/launch_bound.h"

#include <gtest/gtest.h>

#include "program/plan_builder_for_test.h"

namespace adder {
namespace {

TEST(MostLaunches, ByKindOfLayer) {
  Program program = test::TwoLayerPlan().Lower();
  EXPECT_EQ(MostLaunches(program, -1), 4);
  EXPECT_EQ(MostLaunches(program, 0), 9);  // Mamba-2 with experts, an MLP and a norm in groups
  EXPECT_EQ(MostLaunches(program, 1), 7);  // attention with an MLP
}

TEST(MostLaunches, ShortLayersAreGivenLess) {
  Program program = test::TwoLayerPlan().Lower();
  std::erase_if(program.ops, [](const Op& op) {
    return op.name.find("mlp") != std::string::npos || op.name.find("moe") != std::string::npos;
  });
  EXPECT_EQ(MostLaunches(program, 0), 4);
  EXPECT_EQ(MostLaunches(program, 1), 5);
}

TEST(MostLaunches, RareWordsAreALaunchEach) {
  Program program;
  const auto add = [&](int64_t layer, OpBody body) {
    program.ops.push_back({"op", layer, std::move(body)});
  };
  LinearOp head;
  head.cap = 30;
  add(-1, EmbedOp{});
  add(-1, head);
  EXPECT_EQ(MostLaunches(program, -1), 5);  // and two that choose tokens
  for (int i = 0; i < 9; ++i) add(0, LinearOp{});
  EXPECT_EQ(MostLaunches(program, 0), 6);
  add(0, RgLruOp{});
  EXPECT_EQ(MostLaunches(program, 0), 10);
  LinearOp normed;
  normed.norm = RmsNorm{kNoId, 1e-5f, 1};
  add(1, normed);
  add(1, TokenShiftOp{});
  add(1, UpdateOp{});
  EXPECT_EQ(MostLaunches(program, 1), 5);
}

TEST(MostLaunches, ShiftsBehindLayerNormsTakeTheirMatricesWithThem) {
  Program program;
  const auto add = [&](OpBody body) { program.ops.push_back({"op", 0, std::move(body)}); };
  const auto linear = [&](BufferId input, BufferId output) {
    LinearOp op;
    op.input = input;
    op.output = output;
    add(op);
  };
  TokenShiftOp shift;
  shift.norm = RmsNorm{0, 1e-5f, 1};
  shift.norm->centered = true;
  shift.output = 1;
  add(shift);
  for (BufferId id = 2; id < 9; ++id) linear(1, id);
  for (BufferId id = 5; id < 9; ++id) linear(id, id + 4);
  Rwkv7Op scan;
  scan.r = 2;
  scan.k = 3;
  scan.v = 4;
  scan.decay = 9;
  scan.rate = 10;
  scan.gate = 11;
  scan.value_mix = 12;
  scan.output = 13;
  add(scan);
  linear(13, 0);
  EXPECT_EQ(MostLaunches(program, 0), 3);
  EXPECT_EQ(MostLaunches(program, 0, false), 15);
  // Another norm is a pass of its own, and so are its matrices launches of their own.
  std::get<TokenShiftOp>(program.ops.front().body).norm->centered = false;
  EXPECT_EQ(MostLaunches(program, 0), 11);
}

TEST(MostLaunches, NormsBehindMixersAndConvolutionsAreBeyondTheUsual) {
  Program program;
  for (int i = 0; i < 9; ++i) program.ops.push_back({"op", 0, LinearOp{}});
  EXPECT_EQ(MostLaunches(program, 0), 6);
  program.ops.push_back({"op", 0, NormAddOp{}});
  program.ops.push_back({"op", 0, CausalConvOp{}});
  EXPECT_EQ(MostLaunches(program, 0), 8);
  program.ops.push_back({"op", 0, Mamba2SelectedOp{}});
  EXPECT_EQ(MostLaunches(program, 0), 9);
  LinearOp grouped;
  grouped.norm = RmsNorm{0, 1e-5f, 4};
  program.ops.push_back({"op", 0, grouped});
  EXPECT_EQ(MostLaunches(program, 0), 10);
}

}  // namespace
}  // namespace adder
