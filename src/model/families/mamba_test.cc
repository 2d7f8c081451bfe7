#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["MambaForCausalLM"], "model_type": "mamba", "hidden_size": 24, "expand": 2,
  "d_model": 24, "ssm_cfg": {}, "state_size": 5, "conv_kernel": 3, "time_step_rank": 7,
  "num_hidden_layers": 2, "vocab_size": 50, "layer_norm_epsilon": 1e-6, "use_bias": false,
  "use_conv_bias": true, "rms_norm": true, "residual_in_fp32": true, "hidden_act": "silu"})";
const char* const kOriginal = R"({
  "d_model": 40, "n_layer": 3, "vocab_size": 50, "pad_vocab_size_multiple": 16,
  "ssm_cfg": {"d_state": 5, "expand": 3}, "rms_norm": true, "fused_add_norm": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }
Json Original() { return ParseJson(kOriginal, "config.json"); }
const Mamba1& MixerOf(const Plan& plan) { return std::get<Mamba1>(plan.blocks[0].mixers[0]); }

TEST(Mamba, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  EXPECT_EQ(plan.family, "mamba");
  ASSERT_EQ(plan.blocks.size(), 2u);
  EXPECT_FLOAT_EQ(plan.blocks[1].pre_norm.eps, 1e-6f);
  const Mamba1& mamba = MixerOf(plan);
  EXPECT_EQ(mamba.inner, 48);
  EXPECT_EQ(mamba.d_state, 5);
  EXPECT_EQ(mamba.d_conv, 3);
  EXPECT_EQ(mamba.dt_rank, 7);
  EXPECT_EQ(mamba.in_proj.bias, kNoId);
  EXPECT_NE(mamba.conv_bias, kNoId);
  EXPECT_NE(mamba.dt_proj.bias, kNoId);
  EXPECT_FALSE(mamba.dt_norm || mamba.b_norm || mamba.c_norm);
  EXPECT_EQ(plan.matrices[mamba.in_proj.weight].rows, 96);
  EXPECT_EQ(plan.matrices[mamba.x_proj.weight].rows, 7 + 5 + 5);
  EXPECT_EQ(plan.vectors[mamba.conv_weight].parts[0].shapes,
            (std::vector<Shape>{{48, 1, 3}, {48, 3, 1}}));
  EXPECT_EQ(plan.vectors[mamba.a].transform, VectorTransform::kNegativeExpTransposed);
  EXPECT_EQ(plan.vectors[mamba.a].parts[0].shapes, (std::vector<Shape>{{48, 5}}));
  // Tied when the config says nothing and no head is there.
  EXPECT_EQ(plan.head.weight, plan.embedding);
}

TEST(Mamba, OptionalParts) {
  const Plan plan =
      BuildPlan(With(With(With(With(Config(), "use_bias", "true"), "use_conv_bias", "false"),
                          "intermediate_size", "36"),
                     "tie_word_embeddings", "false"));
  EXPECT_NE(MixerOf(plan).in_proj.bias, kNoId);
  EXPECT_NE(MixerOf(plan).out_proj.bias, kNoId);
  EXPECT_EQ(MixerOf(plan).conv_bias, kNoId);
  // The width counts, not `expand`.
  EXPECT_EQ(MixerOf(plan).inner, 36);
  EXPECT_NE(plan.head.weight, plan.embedding);
  // hidden / 16, rounded up.
  EXPECT_EQ(MixerOf(BuildPlan(With(Config(), "time_step_rank", "\"auto\""))).dt_rank, 2);
  EXPECT_EQ(MixerOf(BuildPlan(Without(Config(), "time_step_rank"))).dt_rank, 2);
  // Releases of the reference differ in the default: the checkpoint decides.
  const TensorNames with_bias(
      [](const std::string& name) { return name == "backbone.layers.0.mixer.in_proj.bias"; });
  EXPECT_NE(MixerOf(BuildPlan(Without(Config(), "use_bias"), with_bias)).in_proj.bias, kNoId);
  EXPECT_EQ(MixerOf(BuildPlan(Without(Config(), "use_bias"))).in_proj.bias, kNoId);
}

TEST(Mamba, OriginalConfig) {
  const Plan plan = BuildPlan(Original());
  EXPECT_EQ(plan.family, "mamba");
  EXPECT_EQ(plan.vocab, 64);  // 50 padded to a multiple of 16
  ASSERT_EQ(plan.blocks.size(), 3u);
  EXPECT_EQ(MixerOf(plan).inner, 120);
  EXPECT_EQ(MixerOf(plan).d_state, 5);
  EXPECT_EQ(MixerOf(plan).d_conv, 4);
  EXPECT_EQ(MixerOf(plan).dt_rank, 3);
  EXPECT_EQ(plan.head.weight, plan.embedding);
  const TensorNames names(
      [](const std::string& name) { return name == "backbone.embedding.weight"; });
  const Plan named = BuildPlan(Original(), names);
  EXPECT_EQ(named.matrices[named.embedding].parts[0].module, "backbone.embedding");
  EXPECT_EQ(named.matrices[MixerOf(named).x_proj.weight].parts[0].module,
            "backbone.layers.0.mixer.x_proj");
}

TEST(Mamba, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "rms_norm", "false", "rms_norm is false");
  ExpectRefused(Config(), "hidden_act", "\"gelu\"", "hidden_act");
  ExpectRefused(Original(), "rms_norm", "false", "rms_norm is false");
  ExpectRefused(Original(), "attn_layer_idx", "[1]", "attn_layer_idx is [1]");
  ExpectAbsurdSizesRefused(Config(), {"hidden_size", "state_size", "conv_kernel", "expand",
                                      "num_hidden_layers", "vocab_size", "time_step_rank"});
  ExpectAbsurdSizesRefused(Config(), {"intermediate_size"});
  ExpectAbsurdSizesRefused(Original(),
                           {"d_model", "n_layer", "vocab_size", "pad_vocab_size_multiple"});
  ExpectRefused(Config(), "state_size", "16777216", "d_state");
}

TEST(Mamba, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/mamba");
}

TEST(Mamba, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  EXPECT_EQ(MixerOf(CheckGeometry("mamba-130m")).dt_rank, 48);
}

}  // namespace
}  // namespace adder
