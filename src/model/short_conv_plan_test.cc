// ShortConv, Mamba-2 with a selection and norms after mixers, in plans and states.
#include <gtest/gtest.h>

#include "model/plan.h"
#include "model/refused_plan_for_test.h"
#include "model/state_layout.h"

namespace adder {
namespace {

// Hidden 6, vocab 10: a ShortConv of 5 channels, then a Mamba2 of 4 heads x 3 with a selection.
Plan SmallPlan() {
  Plan plan;
  plan.family = "test";
  plan.vocab = 10;
  plan.hidden = 6;
  plan.embedding = plan.AddMatrix("embed", "embed", 10, 6);
  plan.head.weight = plan.embedding;
  plan.final_norm.weight = plan.AddVector("norm", "norm.weight", 6);

  ShortConv conv;
  conv.channels = 5;
  conv.d_conv = 3;
  conv.in_proj.weight = plan.AddMatrix("in", "in", 15, 6);
  conv.conv_weight = plan.AddVector(VectorRef{
      "conv", {{"conv.weight", {{5, 1, 3}, {5, 3, 1}}}}, VectorTransform::kConvTimeMajor});
  conv.conv_bias = plan.AddVector("conv bias", "conv.bias", 5);
  conv.out_proj.weight = plan.AddMatrix("out", "out", 6, 5);

  Mamba2 mamba;
  mamba.heads = 4;
  mamba.head_dim = 3;
  mamba.d_state = 5;
  mamba.groups = 2;
  mamba.d_conv = 4;
  mamba.selection.emplace();
  mamba.selection->dt_rank = 7;
  mamba.in_proj.weight = plan.AddMatrix("in2", "in2", 24, 6);
  mamba.conv_weight = plan.AddVector(
      VectorRef{"conv2", {{"conv2.weight", {{12, 1, 4}}}}, VectorTransform::kConvTimeMajor});
  mamba.selection->proj.weight = plan.AddMatrix("bcdt", "bcdt", 27, 12);
  mamba.selection->b_norm = RmsNorm{plan.AddVector("b", "b", 10), 1e-6f, 2};
  mamba.selection->dt_norm = RmsNorm{plan.AddVector("dt", "dt", 7), 1e-6f, 1};
  mamba.selection->dt_proj.weight = plan.AddMatrix("dt_proj", "dt_proj", 4, 7);
  mamba.dt_bias = plan.AddVector("dt_bias", "dt_bias", 4);
  mamba.a = plan.AddVector("a", "A_log", 4, VectorTransform::kNegativeExp);
  mamba.d = plan.AddVector("d", "D", 4);
  mamba.out_proj.weight = plan.AddMatrix("out2", "out2", 6, 12);

  const auto norm = [&plan] { return RmsNorm{plan.AddVector("pre", "pre.weight", 6), 1e-6f, 1}; };
  plan.blocks.push_back(Block{0, norm(), {conv}, 1, std::nullopt});
  plan.blocks.push_back(Block{1, norm(), {mamba}, 0.5f, norm()});
  return plan;
}

ShortConv& ConvOf(Plan& plan) { return std::get<ShortConv>(plan.blocks[0].mixers[0]); }
Mamba2& MambaOf(Plan& plan) { return std::get<Mamba2>(plan.blocks[1].mixers[0]); }

template <class Change>
void ExpectInvalid(Change change, const std::string& words) {
  Plan plan = SmallPlan();
  change(plan);
  test::ExpectRefused(plan, words);
}

TEST(ShortConvPlan, Validates) {
  EXPECT_NO_THROW(ValidatePlan(SmallPlan()));
  ExpectInvalid([](Plan& plan) { ConvOf(plan).channels = 0; }, "(ShortConv): channels is 0");
  ExpectInvalid([](Plan& plan) { ConvOf(plan).channels = 4; }, "in_proj is \"in\"");
  ExpectInvalid([](Plan& plan) { ConvOf(plan).d_conv = 1025; }, "d_conv is 1025");
  ExpectInvalid([](Plan& plan) { ConvOf(plan).d_conv = 2; }, "conv_weight is \"conv\"");
  ExpectInvalid([](Plan& plan) { ConvOf(plan).conv_bias = 99; }, "conv_bias has the vector id 99");
  ExpectInvalid([](Plan& plan) { ConvOf(plan).out_proj.weight = 0; }, "out_proj is \"embed\"");
}

TEST(Mamba2SelectionPlan, Validates) {
  ExpectInvalid([](Plan& plan) { MambaOf(plan).selection->dt_rank = 0; }, "dt_rank is 0");
  ExpectInvalid([](Plan& plan) { MambaOf(plan).selection->dt_rank = int64_t{1} << 60; }, "dt_rank");
  ExpectInvalid([](Plan& plan) { MambaOf(plan).selection->dt_rank = 6; }, "selection proj is");
  ExpectInvalid([](Plan& plan) { MambaOf(plan).selection->b_norm->groups = 3; },
                "selection b_norm (10) is not a multiple of groups (3)");
  ExpectInvalid([](Plan& plan) { MambaOf(plan).selection->dt_proj.weight = 0; },
                "selection dt_proj is \"embed\"");
  ExpectInvalid([](Plan& plan) { MambaOf(plan).selection.reset(); }, "in_proj is \"in2\"");
}

TEST(PostNormPlan, Validates) {
  ExpectInvalid([](Plan& plan) { plan.blocks[1].post_norm->eps = -1; }, "post_norm eps is -1");
  ExpectInvalid([](Plan& plan) { plan.blocks[1].post_norm->weight = kNoId; },
                "post_norm has the vector id -1");
  ExpectInvalid(
      [](Plan& plan) {
        plan.vectors[plan.final_norm.weight].offset = std::numeric_limits<float>::infinity();
      },
      "offset is inf");
}

TEST(ShortConvPlan, States) {
  const StateLayout layout = MakeStateLayout(SmallPlan());
  ASSERT_EQ(layout.recurrent.size(), 3u);
  EXPECT_EQ(layout.recurrent[0].name, "conv");
  EXPECT_EQ(layout.recurrent[0].shape, (Shape{2, 5}));
  EXPECT_EQ(layout.recurrent[1].shape, (Shape{3, 12}));
  EXPECT_EQ(layout.recurrent[2].shape, (Shape{4, 5, 3}));
  EXPECT_EQ(layout.recurrent_floats, 16 + 48 + 64);
  EXPECT_TRUE(layout.kv.empty());
}

TEST(ShortConvPlan, PrintsAndCounts) {
  // embed 60, norm 6; conv 90 + 15 + 5 + 30 + 6; mamba 144 + 48 + 324 + 10 + 7 + 28 + 12 + 72 + 12.
  EXPECT_EQ(ParameterCount(SmallPlan()), 66 + 146 + 657);
  const std::string text = PlanString(SmallPlan());
  EXPECT_NE(text.find("ShortConv(channels=5 d_conv=3+bias in_proj=[15x6] out_proj=[6x5]) -> "
                      "residual_scale=1\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("out_proj=[6x12] selection=(dt_rank=7 proj=[27x12] "
                      "b_norm=rms(eps=1e-06,groups=2) c_norm=none dt_norm=rms(eps=1e-06) "
                      "dt_proj=[4x7])) -> rms(eps=1e-06) -> residual_scale=0.5\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace adder
