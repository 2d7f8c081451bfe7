// The Mamba-1 mixer in a plan: its checks, its printed form, its state.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "model/plan.h"
#include "model/refused_plan_for_test.h"
#include "model/state_layout.h"

namespace adder {
namespace {

// Hidden 6, inner 10, d_state 3, d_conv 4, dt_rank 2: no two sizes alike.
Plan SmallPlan() {
  Plan plan;
  plan.family = "test";
  plan.vocab = 11;
  plan.hidden = 6;
  plan.embedding = plan.AddMatrix("embedding", "embedding", 11, 6);
  plan.head.weight = plan.embedding;
  plan.final_norm.weight = plan.AddVector("final", "final.weight", 6);
  Mamba1 mamba;
  mamba.inner = 10;
  mamba.d_state = 3;
  mamba.d_conv = 4;
  mamba.dt_rank = 2;
  mamba.in_proj.weight = plan.AddMatrix("in", "in", 20, 6);
  mamba.conv_weight = plan.AddVector(VectorRef{
      "conv", {{"conv.weight", {{10, 1, 4}, {10, 4, 1}}}}, VectorTransform::kConvTimeMajor});
  mamba.conv_bias = plan.AddVector("conv bias", "conv.bias", 10);
  mamba.x_proj.weight = plan.AddMatrix("x", "x", 2 + 2 * 3, 10);
  mamba.dt_norm = RmsNorm{plan.AddVector("dt norm", "dt_norm.weight", 2), 1e-5f, 1};
  mamba.b_norm = RmsNorm{kNoId, 1e-4f, 1};
  mamba.dt_proj.weight = plan.AddMatrix("dt", "dt", 10, 2);
  mamba.dt_proj.bias = plan.AddVector("dt bias", "dt.bias", 10);
  mamba.a = plan.AddVector(
      VectorRef{"a", {{"A_log", {{10, 3}}}}, VectorTransform::kNegativeExpTransposed});
  mamba.d = plan.AddVector("d", "D", 10);
  mamba.out_proj.weight = plan.AddMatrix("out", "out", 6, 10);
  const VectorId norm = plan.AddVector("pre", "pre.weight", 6);
  plan.blocks.push_back(Block{0, RmsNorm{norm, 1e-6f, 1}, {mamba}, 0.25f, {}});
  return plan;
}

Mamba1& MixerOf(Plan& plan) { return std::get<Mamba1>(plan.blocks[0].mixers[0]); }

template <class Change>
void ExpectInvalid(Change change, const std::string& word) {
  Plan plan = SmallPlan();
  change(plan, MixerOf(plan));
  test::ExpectRefused(plan, word);
}

TEST(Mamba1Plan, IsChecked) {
  EXPECT_NO_THROW(ValidatePlan(SmallPlan()));
  ExpectInvalid([](Plan&, Mamba1& m) { m.inner = 0; }, "inner is 0");
  ExpectInvalid([](Plan&, Mamba1& m) { m.inner = kMaxSize + 1; }, "inner is");
  ExpectInvalid([](Plan&, Mamba1& m) { m.d_state = -1; }, "d_state is -1");
  ExpectInvalid([](Plan&, Mamba1& m) { m.d_state = m.inner = kMaxSize; },
                "a state of d_state x inner");
  ExpectInvalid([](Plan&, Mamba1& m) { m.d_conv = 1025; }, "d_conv is 1025");
  ExpectInvalid([](Plan&, Mamba1& m) { m.dt_rank = 0; }, "dt_rank is 0");
  ExpectInvalid([](Plan&, Mamba1& m) { m.dt_rank = 3; }, "x_proj");
  ExpectInvalid([](Plan&, Mamba1& m) { std::swap(m.dt_proj.weight, m.x_proj.weight); }, "x_proj");
  ExpectInvalid([](Plan&, Mamba1& m) { m.dt_norm->weight = m.d; }, "dt_norm");
  ExpectInvalid([](Plan&, Mamba1& m) { m.b_norm->eps = -1; }, "b_norm eps is -1");
  ExpectInvalid([](Plan&, Mamba1& m) { m.b_norm->groups = 2; }, "b_norm");
  ExpectInvalid([](Plan&, Mamba1& m) { m.dt_norm->centered = true; },
                "a centered dt_norm is not implemented");
  ExpectInvalid(
      [](Plan&, Mamba1& m) {
        m.c_norm = RmsNorm{kNoId, std::numeric_limits<float>::infinity(), 1};
      },
      "c_norm eps is inf");
  ExpectInvalid([](Plan&, Mamba1& m) { m.a = m.d; }, "a is \"d\"");
  ExpectInvalid([](Plan&, Mamba1& m) { m.conv_weight = kNoId; }, "conv_weight");
  // The loader transposes one matrix.
  ExpectInvalid([](Plan& plan, Mamba1& m) { plan.vectors[m.a].parts[0].shapes = {{30}}; },
                "two dimensions");
}

TEST(Mamba1Plan, IsPrinted) {
  const std::string text = PlanString(SmallPlan());
  EXPECT_NE(text.find("Mamba1(inner=10 d_state=3 d_conv=4+bias dt_rank=2 in_proj=[20x6] "
                      "x_proj=[8x10] dt_norm=rms(eps=1e-05) b_norm=rms(eps=0.0001) unweighted "
                      "c_norm=none dt_proj=[10x2]+bias out_proj=[6x10])"),
            std::string::npos)
      << text;
}

TEST(Mamba1Plan, StateIsTheWindowAndOneRowPerStateDimension) {
  const StateLayout layout = MakeStateLayout(SmallPlan());
  ASSERT_EQ(layout.recurrent.size(), 2u);
  EXPECT_EQ(layout.recurrent[0].name, "conv");
  EXPECT_EQ(layout.recurrent[0].shape, (Shape{3, 10}));
  EXPECT_EQ(layout.recurrent[1].name, "ssm");
  EXPECT_EQ(layout.recurrent[1].shape, (Shape{3, 10}));
  EXPECT_EQ(layout.recurrent[1].offset, 32);  // 30 rounded up to 16
  EXPECT_EQ(layout.recurrent_floats, 64);
}

}  // namespace
}  // namespace adder
