// The gated delta rule in a plan: its checks, its printed form, its state.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "core/error.h"
#include "model/plan.h"
#include "model/refused_plan_for_test.h"
#include "model/state_layout.h"

namespace adder {
namespace {

// Hidden 6, 2 key heads of 3 and 4 value heads of 5, d_conv 4: no two sizes alike. With low ranks:
// a decay per channel from rank 8 and a gate from rank 9.
Plan SmallPlan(bool low_rank) {
  Plan plan;
  plan.family = "test";
  plan.vocab = 11;
  plan.hidden = 6;
  plan.embedding = plan.AddMatrix("embedding", "embedding", 11, 6);
  plan.head.weight = plan.embedding;
  plan.final_norm.weight = plan.AddVector("final", "final.weight", 6);
  GatedDelta delta;
  delta.key_heads = 2;
  delta.value_heads = 4;
  delta.key_dim = 3;
  delta.value_dim = 5;
  delta.d_conv = 4;
  delta.query_scale = 0.5f;
  delta.beta_scale = 2;
  delta.decay_per_channel = low_rank;
  if (low_rank) {
    delta.gate_activation = Activation::kSigmoid;
    delta.decay_proj =
        LowRank{{plan.AddMatrix("f_a", "f_a", 8, 6)}, {plan.AddMatrix("f_b", "f_b", 12, 8)}};
    delta.gate_proj =
        LowRank{{plan.AddMatrix("g_a", "g_a", 9, 6)}, {plan.AddMatrix("g_b", "g_b", 20, 9)}};
  }
  // q, k, v and b, and without low ranks a and z.
  delta.in_proj.weight = plan.AddMatrix("in", "in", 32 + 4 + (low_rank ? 0 : 4 + 20), 6);
  delta.conv_weight = plan.AddVector(VectorRef{
      "conv",
      {{"q.weight", {{6, 1, 4}, {6, 4, 1}}}, {"k.weight", {{6, 1, 4}}}, {"v.weight", {{20, 1, 4}}}},
      VectorTransform::kConvTimeMajor});
  delta.dt_bias = plan.AddVector("dt bias", "dt_bias", low_rank ? 12 : 4);
  delta.a = plan.AddVector("a", "A_log", 4, VectorTransform::kNegativeExp);
  delta.norm.weight = plan.AddVector("norm", "norm.weight", 5);
  delta.out_proj.weight = plan.AddMatrix("out", "out", 6, 20);
  const VectorId norm = plan.AddVector("pre", "pre.weight", 6);
  plan.blocks.push_back(Block{0, RmsNorm{norm, 1e-6f, 1}, {delta}, 0.25f, {}});
  return plan;
}

template <class Change>
void ExpectInvalid(bool low_rank, Change change, const std::string& word) {
  Plan plan = SmallPlan(low_rank);
  change(plan, std::get<GatedDelta>(plan.blocks[0].mixers[0]));
  test::ExpectRefused(plan, word);
}

TEST(GatedDeltaPlan, IsChecked) {
  EXPECT_NO_THROW(ValidatePlan(SmallPlan(false)));
  EXPECT_NO_THROW(ValidatePlan(SmallPlan(true)));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.key_heads = 0; }, "key_heads is 0");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.value_heads = -1; }, "value_heads is -1");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.key_heads = 3; }, "not a multiple of key_heads");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.key_dim = kMaxSize + 1; }, "key_dim is");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.value_dim = 0; }, "value_dim is 0");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.key_dim = m.value_dim = kMaxSize; },
      "a state of value_heads x key_dim x value_dim");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.d_conv = 1025; }, "d_conv is 1025");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.qk_eps = -1; }, "qk_eps is -1");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.query_scale = kInfinity; }, "query_scale");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.beta_scale = kInfinity; }, "beta_scale");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.decay_per_channel = true; }, "in_proj");
  ExpectInvalid(
      true, [](Plan&, GatedDelta& m) { m.decay_per_channel = false; }, "decay_proj up");
  ExpectInvalid(
      true, [](Plan&, GatedDelta& m) { m.decay_proj->down = m.gate_proj->up; }, "decay_proj");
  ExpectInvalid(
      true, [](Plan&, GatedDelta& m) { std::swap(m.gate_proj->down, m.decay_proj->down); },
      "proj up");
  ExpectInvalid(
      true, [](Plan&, GatedDelta& m) { m.dt_bias = m.a; }, "dt_bias is \"a\"");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.a = m.norm.weight; }, "a is \"norm\"");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.norm.weight = m.a; }, "norm is \"a\"");
  ExpectInvalid(
      false, [](Plan&, GatedDelta& m) { m.conv_weight = kNoId; }, "conv_weight");
  // The loader puts the parts' channels side by side, so they need the same taps.
  ExpectInvalid(
      false,
      [](Plan& plan, GatedDelta& m) {
        plan.vectors[m.conv_weight].parts[1].shapes = {{3, 1, 8}};
      },
      "taps");
}

TEST(GatedDeltaPlan, IsPrinted) {
  EXPECT_NE(PlanString(SmallPlan(false))
                .find("GatedDelta(heads=2/4 key_dim=3 value_dim=5 d_conv=4 decay=head "
                      "qk_eps=1e-06 query_scale=0.5 beta_scale=2 in_proj=[60x6] "
                      "norm=rms(eps=1e-05) gate=silu out_proj=[6x20])"),
            std::string::npos)
      << PlanString(SmallPlan(false));
  EXPECT_NE(PlanString(SmallPlan(true))
                .find("decay=channel qk_eps=1e-06 query_scale=0.5 beta_scale=2 in_proj=[36x6] "
                      "decay_proj=[12x8]<-[8x6] gate_proj=[20x9]<-[9x6] norm=rms(eps=1e-05) "
                      "gate=sigmoid"),
            std::string::npos)
      << PlanString(SmallPlan(true));
}

TEST(GatedDeltaPlan, StateIsTheWindowAndOneMatrixPerHead) {
  const StateLayout layout = MakeStateLayout(SmallPlan(false));
  ASSERT_EQ(layout.recurrent.size(), 2u);
  EXPECT_EQ(layout.recurrent[0].name, "conv");
  EXPECT_EQ(layout.recurrent[0].shape, (Shape{3, 32}));
  EXPECT_EQ(layout.recurrent[1].name, "delta");
  EXPECT_EQ(layout.recurrent[1].shape, (Shape{4, 3, 5}));
  EXPECT_EQ(layout.recurrent[1].offset, 96);
  EXPECT_EQ(layout.recurrent_floats, 96 + 64);
}

}  // namespace
}  // namespace adder
