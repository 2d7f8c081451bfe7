#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// All sizes differ, so that a swapped pair shows.
const char* const kConfig = R"({
  "architectures": ["Lfm2ForCausalLM"], "model_type": "lfm2", "hidden_size": 24,
  "block_ff_dim": 30, "block_auto_adjust_ff_dim": true, "block_multiple_of": 8,
  "block_ffn_dim_multiplier": 1.3, "num_hidden_layers": 3, "full_attn_idxs": [1],
  "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 50, "norm_eps": 1e-6,
  "conv_L_cache": 4, "conv_bias": false, "conv_dim": 24, "max_position_embeddings": 512,
  "theta": 5000.0, "rope_theta": 5000.0, "tie_embedding": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }

const ShortConv& ConvOf(const Plan& plan) { return std::get<ShortConv>(plan.blocks[0].mixers[0]); }
const DenseMlp& MlpOf(const Plan& plan) { return std::get<DenseMlp>(plan.blocks[1].mixers[0]); }
bool IsAttention(const Plan& plan, size_t layer) {
  return std::holds_alternative<Attention>(plan.blocks[2 * layer].mixers[0]);
}

TEST(Lfm2, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 6u);
  EXPECT_EQ(plan.max_positions, 512);
  EXPECT_FLOAT_EQ(plan.blocks[0].pre_norm.eps, 1e-6f);
  const ShortConv& conv = ConvOf(plan);
  EXPECT_EQ(conv.channels, 24);
  EXPECT_EQ(conv.d_conv, 4);
  EXPECT_EQ(conv.conv_bias, kNoId);
  EXPECT_EQ(plan.matrices[conv.in_proj.weight].rows, 72);
  ASSERT_TRUE(IsAttention(plan, 1));
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(attention.kv_heads, 3);
  EXPECT_FLOAT_EQ(attention.scale, 0.5f);
  EXPECT_EQ(attention.rope->theta, 5000.0);
  EXPECT_EQ(attention.q_norm->groups, 1);
  EXPECT_FLOAT_EQ(attention.k_norm->eps, 1e-6f);
  EXPECT_EQ(VectorSize(plan.vectors[attention.q_norm->weight]), 4);
  EXPECT_EQ(plan.matrices[MlpOf(plan).gate_up.weight].parts[1].module,
            "model.layers.0.feed_forward.w3");
  EXPECT_EQ(plan.head.weight, plan.embedding);
}

TEST(Lfm2, WidthOfTheMlp) {
  EXPECT_EQ(MlpOf(BuildPlan(Config())).intermediate, 32);  // 30 -> 20 -> 26 -> 32
  EXPECT_EQ(MlpOf(BuildPlan(With(Config(), "block_auto_adjust_ff_dim", "false"))).intermediate, 30);
  EXPECT_EQ(MlpOf(BuildPlan(With(Config(), "block_ff_dim", "48"))).intermediate, 48);
  const Json renamed = With(Without(Config(), "block_ff_dim"), "intermediate_size", "90");
  EXPECT_EQ(MlpOf(BuildPlan(renamed)).intermediate, 80);
}

TEST(Lfm2, KindsOfLayers) {
  const Json typed = With(Without(Config(), "full_attn_idxs"), "layer_types",
                          R"(["full_attention", "conv", "full_attention"])");
  EXPECT_TRUE(IsAttention(BuildPlan(typed), 0));
  EXPECT_FALSE(IsAttention(BuildPlan(typed), 1));
  EXPECT_TRUE(IsAttention(BuildPlan(Without(Config(), "full_attn_idxs")), 2));
  ExpectRefused(typed, "full_attn_idxs", "[1]", "full_attn_idxs");
  ExpectRefused(typed, "layer_types", R"(["conv", "mamba", "conv"])", "layer_types");
  ExpectRefused(typed, "layer_types", R"(["conv"])", "layer_types");
  for (const char* value : {"[3]", "[-1]", "[0.5]", "[NaN]", "1", "[\"0\"]"}) {
    ExpectRefused(Config(), "full_attn_idxs", value, "full_attn_idxs");
  }
}

TEST(Lfm2, OptionalParts) {
  const Plan biased = BuildPlan(With(Config(), "conv_bias", "true"));
  EXPECT_NE(ConvOf(biased).conv_bias, kNoId);
  EXPECT_NE(ConvOf(biased).in_proj.bias, kNoId);
  EXPECT_NE(ConvOf(biased).out_proj.bias, kNoId);
  EXPECT_NE(BuildPlan(With(Config(), "tie_embedding", "false")).head.weight, 0);
  const Plan unstated = BuildPlan(Without(Without(Config(), "theta"), "rope_theta"));
  EXPECT_EQ(std::get<Attention>(unstated.blocks[2].mixers[0]).rope->theta, 1e6);
}

TEST(Lfm2, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(Config(),
                           {"hidden_size", "block_ff_dim", "block_multiple_of", "num_hidden_layers",
                            "num_attention_heads", "vocab_size", "conv_L_cache"});
  ExpectAbsurdScalesRefused(Config(), {"block_ffn_dim_multiplier", "norm_eps"});
  ExpectRefused(Config(), "block_ffn_dim_multiplier", "null", "block_ffn_dim_multiplier");
  ExpectRefused(Config(), "block_ffn_dim_multiplier", "-1", "block_ffn_dim_multiplier");
  ExpectRefused(Config(), "conv_dim", "48", "conv_dim");
  ExpectRefused(Config(), "use_pos_enc", "false", "use_pos_enc");
  ExpectRefused(Config(), "block_use_swiglu", "false", "block_use_swiglu");
  ExpectRefused(Config(), "theta", "1000", "theta");
}

TEST(Lfm2, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/lfm2");
  CheckConformanceCase("mlx/lfm2_bf16");
  CheckConformanceCase("mlx/lfm2_8bit");
}

TEST(Lfm2, RealGeometries) {
  ADDER_SKIP_WITHOUT("geometries");
  for (const char* name : {"lfm2-350m", "lfm2-1.2b", "lfm2-2.6b"}) CheckGeometry(name);
}

}  // namespace
}  // namespace adder
