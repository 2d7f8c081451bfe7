#include "model/state_layout.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace adder {
namespace {

// Two different Mamba-2 mixers in one block, then attention, then another Mamba-2.
Plan MixedPlan() {
  Mamba2 first;
  first.heads = 6;
  first.head_dim = 3;
  first.d_state = 5;
  first.groups = 2;
  first.d_conv = 4;
  Mamba2 second = first;
  second.heads = 4;
  second.d_conv = 1;
  Attention attention;
  attention.heads = 4;
  attention.kv_heads = 2;
  attention.head_dim = 7;
  Plan plan;
  plan.blocks.resize(3);
  plan.blocks[0].mixers = {DenseMlp{}, first, second};
  plan.blocks[1].mixers = {attention};
  attention.kv_heads = 1;
  plan.blocks[2].mixers = {first, attention};
  return plan;
}

TEST(StateLayout, PlacesStatesWithoutOverlap) {
  const StateLayout layout = MakeStateLayout(MixedPlan());
  ASSERT_EQ(layout.recurrent.size(), 6u);
  // channels = heads * 3 + 2 * 2 * 5.
  EXPECT_EQ(layout.recurrent[0].name, "conv");
  EXPECT_EQ(layout.recurrent[0].shape, (Shape{3, 38}));
  EXPECT_EQ(layout.recurrent[0].size, 114);
  EXPECT_EQ(layout.recurrent[0].offset, 0);
  EXPECT_EQ(layout.recurrent[1].name, "ssm");
  EXPECT_EQ(layout.recurrent[1].shape, (Shape{6, 5, 3}));
  EXPECT_EQ(layout.recurrent[1].offset, 128);            // 114 rounded up to 16
  EXPECT_EQ(layout.recurrent[2].shape, (Shape{0, 32}));  // one tap remembers nothing
  EXPECT_EQ(layout.recurrent[2].offset, 128 + 96);
  EXPECT_EQ(layout.recurrent[3].shape, (Shape{4, 5, 3}));
  EXPECT_EQ(layout.recurrent[3].offset, 128 + 96);
  EXPECT_EQ(layout.recurrent[4].offset, 128 + 96 + 64);
  EXPECT_EQ(layout.recurrent_floats, 128 + 96 + 64 + 128 + 96);
  EXPECT_EQ(layout.recurrent_bytes(), 4 * 512);
}

TEST(StateLayout, KeepsMamba2StatesAsAsked) {
  Plan plan = MixedPlan();
  Mamba1 selective;
  selective.inner = 6;
  selective.d_state = 5;
  selective.d_conv = 4;
  plan.blocks[1].mixers.push_back(selective);
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const StateLayout layout = MakeStateLayout(plan, dtype);
    EXPECT_EQ(layout.mamba2_dtype, dtype);
    ASSERT_EQ(layout.recurrent.size(), 8u);
    // Windows stay f32, and so do Mamba-1's states.
    for (const size_t i : {0, 2, 4, 5, 6}) {
      EXPECT_EQ(layout.recurrent[i].dtype, DType::kF32) << i;
      EXPECT_EQ(layout.recurrent[i].bytes(), layout.recurrent[i].size * 4) << i;
    }
    EXPECT_EQ(layout.recurrent[5].name, "ssm");
    EXPECT_EQ(layout.recurrent[1].dtype, dtype);
    EXPECT_EQ(layout.recurrent[1].shape, (Shape{6, 5, 3}));
    EXPECT_EQ(layout.recurrent[1].size, 90);
    EXPECT_EQ(layout.recurrent[1].bytes(), 180);
    EXPECT_EQ(layout.recurrent[1].floats(), 45);
    EXPECT_EQ(layout.recurrent[2].offset, 128 + 48);
    EXPECT_EQ(layout.recurrent[3].floats(), 30);
    EXPECT_EQ(layout.recurrent[4].offset, 128 + 48 + 32);
    EXPECT_EQ(layout.recurrent[5].offset, 128 + 48 + 32 + 32);
    EXPECT_EQ(layout.recurrent_floats, 128 + 48 + 32 + 32 + 32 + 128 + 48);
  }
}

TEST(StateLayout, NamesOfDTypes) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    EXPECT_EQ(ParseStateDType(StateDTypeName(dtype)), dtype);
  }
  for (const char* name : {"", "F16", "fp16", "f64"}) EXPECT_THROW(ParseStateDType(name), Error);
}

TEST(StateLayout, ListsKeysAndValues) {
  const StateLayout layout = MakeStateLayout(MixedPlan());
  ASSERT_EQ(layout.kv.size(), 2u);
  EXPECT_EQ(layout.kv[0].block, 1);
  EXPECT_EQ(layout.kv[0].kv_heads, 2);
  EXPECT_EQ(layout.kv[1].block, 2);
  EXPECT_EQ(layout.kv[1].mixer, 1);
  EXPECT_EQ(layout.kv_bytes_per_position(), 4 * 2 * (2 * 7 + 1 * 7));
}

TEST(StateLayout, FindsStates) {
  const StateLayout layout = MakeStateLayout(MixedPlan());
  EXPECT_EQ(layout.FindRecurrent(0, 1, "conv"), 0);
  EXPECT_EQ(layout.FindRecurrent(0, 1, "ssm"), 1);
  EXPECT_EQ(layout.FindRecurrent(0, 2, "ssm"), 3);
  EXPECT_EQ(layout.FindRecurrent(2, 0, "ssm"), 5);
  EXPECT_EQ(layout.FindRecurrent(0, 0, "ssm"), -1);
  EXPECT_EQ(layout.FindRecurrent(1, 0, "conv"), -1);
  EXPECT_EQ(layout.FindKv(1, 0), 0);
  EXPECT_EQ(layout.FindKv(2, 1), 1);
  EXPECT_EQ(layout.FindKv(2, 0), -1);
}

TEST(StateLayout, OfAPlanWithoutMixersIsEmpty) {
  const StateLayout layout = MakeStateLayout(Plan{});
  EXPECT_EQ(layout.recurrent_floats, 0);
  EXPECT_EQ(layout.kv_bytes_per_position(), 0);
}

}  // namespace
}  // namespace adder
