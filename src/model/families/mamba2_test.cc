#include <gtest/gtest.h>
#include <limits>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["Mamba2ForCausalLM"], "model_type": "mamba2", "hidden_size": 24, "expand": 2,
  "num_heads": 6, "head_dim": 8, "n_groups": 3, "state_size": 5, "conv_kernel": 4,
  "chunk_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "layer_norm_epsilon": 1e-5,
  "time_step_limit": [0.0, Infinity], "tie_word_embeddings": false, "rms_norm": true,
  "norm_before_gate": true, "residual_in_fp32": true, "hidden_act": "silu"})";
const char* const kOriginal = R"({
  "d_model": 32, "n_layer": 3, "vocab_size": 50, "pad_vocab_size_multiple": 16,
  "ssm_cfg": {"layer": "Mamba2", "headdim": 16, "d_state": 5}, "rms_norm": true,
  "tie_embeddings": true, "attn_layer_idx": [], "attn_cfg": {}, "d_intermediate": 0})";

Json Config() { return ParseJson(kConfig, "config.json"); }
Json Original() { return ParseJson(kOriginal, "config.json"); }
Json OriginalWith(const std::string& key, const std::string& value) {
  Json config = Original();
  config["ssm_cfg"][key] = ParseJson(value, "test value");
  return config;
}

const Mamba2& MixerOf(const Plan& plan) { return std::get<Mamba2>(plan.blocks[0].mixers[0]); }

TEST(Mamba2, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  EXPECT_EQ(plan.family, "mamba2");
  ASSERT_EQ(plan.blocks.size(), 2u);
  const Mamba2& mamba = MixerOf(plan);
  EXPECT_EQ(mamba.heads, 6);
  EXPECT_EQ(mamba.head_dim, 8);
  EXPECT_EQ(mamba.groups, 3);
  EXPECT_EQ(mamba.d_state, 5);
  EXPECT_EQ(mamba.d_conv, 4);
  EXPECT_EQ(mamba.chunk, 32);
  EXPECT_EQ(mamba.dt_min, 0.0f);
  EXPECT_EQ(mamba.dt_max, std::numeric_limits<float>::infinity());
  EXPECT_EQ(mamba.gated_norm->groups, 1);
  EXPECT_EQ(mamba.in_proj.bias, kNoId);
  EXPECT_NE(mamba.conv_bias, kNoId);
  EXPECT_EQ(plan.matrices[mamba.in_proj.weight].rows, 48 + 48 + 30 + 6);
  EXPECT_EQ(plan.vectors[mamba.conv_weight].parts[0].shapes,
            (std::vector<Shape>{{78, 1, 4}, {78, 4, 1}}));
  EXPECT_EQ(plan.vectors[mamba.a].transform, VectorTransform::kNegativeExp);
  EXPECT_EQ(plan.matrices[plan.embedding].parts[0].module, "backbone.embeddings");
  EXPECT_EQ(plan.matrices[plan.head.weight].parts[0].module, "lm_head");
}

TEST(Mamba2, OptionalParts) {
  const Plan plan =
      BuildPlan(With(With(With(Config(), "use_bias", "true"), "use_conv_bias", "false"),
                     "time_step_limit", "[0.03, 0.3]"));
  EXPECT_NE(MixerOf(plan).in_proj.bias, kNoId);
  EXPECT_NE(MixerOf(plan).out_proj.bias, kNoId);
  EXPECT_EQ(MixerOf(plan).conv_bias, kNoId);
  EXPECT_EQ(MixerOf(plan).dt_min, 0.03f);
  EXPECT_EQ(MixerOf(plan).dt_max, 0.3f);
  // The number of heads follows from the width when it is missing.
  EXPECT_EQ(MixerOf(BuildPlan(Without(Config(), "num_heads"))).heads, 6);
}

TEST(Mamba2, OriginalConfig) {
  const Plan plan = BuildPlan(Original());
  EXPECT_EQ(plan.vocab, 64);  // 50 padded to a multiple of 16
  EXPECT_EQ(plan.hidden, 32);
  ASSERT_EQ(plan.blocks.size(), 3u);
  const Mamba2& mamba = MixerOf(plan);
  EXPECT_EQ(mamba.heads, 4);
  EXPECT_EQ(mamba.head_dim, 16);
  EXPECT_EQ(mamba.d_state, 5);
  EXPECT_EQ(mamba.groups, 1);
  EXPECT_EQ(mamba.d_conv, 4);
  EXPECT_EQ(plan.head.weight, plan.embedding);
  // The original norm works on each group.
  EXPECT_EQ(MixerOf(BuildPlan(OriginalWith("ngroups", "2"))).gated_norm->groups, 2);
  EXPECT_FALSE(MixerOf(BuildPlan(OriginalWith("rmsnorm", "false"))).gated_norm.has_value());
}

TEST(Mamba2, OriginalTensorNames) {
  const auto has = [](const std::string& name) { return name == "backbone.embedding.weight"; };
  const Plan plan = BuildPlan(Original(), TensorNames(has));
  EXPECT_EQ(plan.matrices[plan.embedding].parts[0].module, "backbone.embedding");
  EXPECT_EQ(plan.matrices[MixerOf(plan).in_proj.weight].parts[0].module,
            "backbone.layers.0.mixer.in_proj");
}

TEST(Mamba2, UnimplementedOptionsAreRefused) {
  ExpectRefused(Config(), "rms_norm", "false", "rms_norm is false");
  ExpectRefused(Config(), "hidden_act", "\"gelu\"", "hidden_act");
  ExpectRefused(Original(), "rms_norm", "false", "rms_norm is false");
  ExpectRefused(Original(), "d_intermediate", "64", "d_intermediate is 64");
  ExpectRefused(Original(), "attn_layer_idx", "[1]", "attn_layer_idx is [1]");
  const auto refused = [](const char* key, const char* value) {
    const std::string error = BuildError(OriginalWith(key, value));
    EXPECT_NE(error.find(key), std::string::npos) << key << ": " << error;
  };
  refused("norm_before_gate", "true");
  refused("D_has_hdim", "true");
  refused("d_ssm", "32");
  ExpectRefused(OriginalWith("layer", "\"Mamba1\""), "model_type", "\"mamba2\"", "layer");
  refused("headdim", "24");
  refused("headdim", "0");
  refused("ngroups", "3");
  refused("d_state", "-1");
  refused("dt_limit", "[1, 0]");
}

TEST(Mamba2, AbsurdValuesAreRefused) {
  EXPECT_NE(BuildError(Without(Config(), "hidden_size")).find("lacks the field hidden_size"),
            std::string::npos);
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "num_heads", "head_dim", "n_groups", "state_size", "conv_kernel",
                 "chunk_size", "expand", "num_hidden_layers", "vocab_size"});
  ExpectAbsurdSizesRefused(Original(),
                           {"d_model", "n_layer", "vocab_size", "pad_vocab_size_multiple"});
  ExpectRefused(Config(), "num_hidden_layers", "1000000000", "num_hidden_layers");
  ExpectRefused(Config(), "n_groups", "4", "n_groups (4)");
  ExpectRefused(Config(), "num_heads", "5", "num_heads");
  ExpectRefused(Config(), "head_dim", "7", "head_dim");
  ExpectRefused(Config(), "time_step_limit", "[0, NaN]", "time_step_limit");
  ExpectRefused(Config(), "state_size", "16777216", "d_state");
}

TEST(Mamba2, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/mamba2");
  const Plan limited = CheckConformanceCase("models/mamba2_groups_limit");
  EXPECT_EQ(MixerOf(limited).groups, 4);
  EXPECT_EQ(MixerOf(limited).gated_norm->groups, 1);
  EXPECT_EQ(MixerOf(limited).dt_max, 0.3f);
  CheckConformanceCase("mlx/mamba2_4bit");
}

TEST(Mamba2, RealGeometries) {
  ADDER_SKIP_WITHOUT("geometries");
  EXPECT_EQ(CheckGeometry("mamba2-130m").vocab, 50288);
  CheckGeometry("mamba2-1.3b");
  CheckGeometry("mamba2-2.7b");
}

}  // namespace
}  // namespace adder
