#include <gtest/gtest.h>

#include <cmath>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// All sizes differ, so that a swapped pair shows.
const char* const kConfig = R"({
  "architectures": ["Zamba2ForCausalLM"], "model_type": "zamba2", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 5, "vocab_size": 50, "rms_norm_eps": 1e-6,
  "layers_block_type": ["mamba", "hybrid", "hybrid", "mamba", "hybrid"], "num_mem_blocks": 2,
  "num_attention_heads": 3, "adapter_rank": 7, "use_mem_rope": true, "rope_theta": 5000,
  "use_shared_attention_adapter": true, "n_mamba_heads": 6, "mamba_d_state": 5,
  "mamba_ngroups": 2, "mamba_d_conv": 4, "mamba_expand": 2, "tie_word_embeddings": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Zamba2, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  // Three blocks of each hybrid layer: attention, MLP, Mamba-2.
  ASSERT_EQ(plan.blocks.size(), 2u + 3u * 3u);
  const auto& mamba = std::get<Mamba2>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(mamba.heads, 6);
  EXPECT_EQ(mamba.head_dim, 8);
  EXPECT_EQ(mamba.gated_norm->groups, 2);
  EXPECT_FLOAT_EQ(mamba.gated_norm->eps, 1e-5f);
  EXPECT_FLOAT_EQ(mamba.dt_min, 0.001f);
  EXPECT_EQ(plan.blocks[1].input, BlockInput::kResidualAndEmbedding);
  EXPECT_TRUE(plan.blocks[1].to_side);
  const auto& attention = std::get<Attention>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(attention.head_dim, 16);
  EXPECT_FLOAT_EQ(attention.scale, 1.0f / std::sqrt(8.0f));
  EXPECT_EQ(attention.rope->theta, 5000.0);
  EXPECT_EQ(plan.matrices[attention.qkv.weight].cols, 48);
  EXPECT_EQ(plan.blocks[2].input, BlockInput::kSide);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[2].mixers[0]).activation, Activation::kGelu);
  EXPECT_EQ(plan.blocks[3].input, BlockInput::kResidualPlusSide);
  EXPECT_FALSE(plan.blocks[3].to_side);
  EXPECT_EQ(plan.matrices[plan.blocks[3].side_projection.weight].parts[0].module,
            "model.layers.1.linear");
}

TEST(Zamba2, LongContextStretchesTheRotation) {
  const Plan plan = BuildPlan(With(Config(), "use_long_context", "true"));
  EXPECT_EQ(plan.max_positions, 16384);
  const auto& attention = std::get<Attention>(plan.blocks[1].mixers[0]);
  // 5000 * 8^(16 / 14)
  EXPECT_NEAR(attention.rope->theta, 53836.0, 0.1);
  EXPECT_NEAR(attention.rope->inverse_frequencies[1], std::pow(53836.0, -2.0 / 16.0), 1e-6);
  const Json without = With(With(Config(), "use_long_context", "true"), "use_mem_rope", "false");
  EXPECT_FALSE(std::get<Attention>(BuildPlan(without).blocks[1].mixers[0]).rope.has_value());
  ExpectRefused(With(Config(), "use_long_context", "true"), "rope_parameters",
                R"({"rope_theta": 5000, "rope_type": "default"})", "use_long_context");
}

TEST(Zamba2, AdaptersLieBelowTheFirstLayerThatUsesTheBlock) {
  const Plan plan = BuildPlan(Config());
  const auto& first = std::get<DenseMlp>(plan.blocks[2].mixers[0]);
  // Layer 4 is the third hybrid layer, so it uses the first block again.
  const auto& again = std::get<DenseMlp>(plan.blocks[9].mixers[0]);
  EXPECT_EQ(again.gate_up.weight, first.gate_up.weight);
  EXPECT_NE(again.gate_up_adapter->a.weight, first.gate_up_adapter->a.weight);
  EXPECT_EQ(plan.matrices[again.gate_up_adapter->b[0]].parts[0].module,
            "model.layers.1.shared_transformer.feed_forward.gate_up_proj_adapter_list.2.1");
  const auto& attention = std::get<Attention>(plan.blocks[8].mixers[0]);
  ASSERT_EQ(attention.qkv_adapter->b.size(), 3u);
  EXPECT_EQ(plan.matrices[attention.qkv_adapter->a.weight].parts[2].module,
            "model.layers.1.shared_transformer.self_attn.linear_v_adapter_list.2.0");
  EXPECT_EQ(plan.ignored_tensors.back(), "model.layers.4.shared_transformer.*");
}

TEST(Zamba2, TimeStepsHaveTheLimitsOfTheConfig) {
  const Plan plan = BuildPlan(With(Config(), "time_step_limit", "[0.01, Infinity]"));
  EXPECT_FLOAT_EQ(std::get<Mamba2>(plan.blocks[0].mixers[0]).dt_min, 0.01f);
}

TEST(Zamba2, HybridLayersMayBeListedByNumber) {
  const Json numbered =
      With(Without(Config(), "layers_block_type"), "hybrid_layer_ids", "[1, 4, 2]");
  EXPECT_EQ(PlanString(BuildPlan(numbered)), PlanString(BuildPlan(Config())));
  EXPECT_EQ(BuildError(With(Config(), "hybrid_layer_ids", "[1, 2, 4]")), "");
  // They have to be the layers of layers_block_type.
  for (const char* value : {"[1, 2]", "[]", "[5]", "[-1]", "[1, 2, 2, 4]", "[1.5]", "[\"1\"]", "2",
                            "\"last\"", "{}", "true"}) {
    ExpectRefused(Config(), "hybrid_layer_ids", value, "hybrid_layer_ids");
  }
  EXPECT_NE(BuildError(Without(Config(), "layers_block_type")).find("layers_block_type"),
            std::string::npos);
}

TEST(Zamba2, LayersAreNamedInBothVocabularies) {
  const std::string plan = PlanString(BuildPlan(Config()));
  const std::string renamed =
      R"(["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"])";
  EXPECT_EQ(PlanString(BuildPlan(With(Config(), "layers_block_type", renamed))), plan);
  EXPECT_EQ(PlanString(BuildPlan(With(Config(), "layer_types", renamed))), plan);
  const Json alone = With(Without(Config(), "layers_block_type"), "layer_types", renamed);
  EXPECT_EQ(PlanString(BuildPlan(alone)), plan);
  ExpectRefused(Config(), "layer_types",
                R"(["hybrid", "hybrid", "hybrid", "linear_attention", "hybrid"])",
                "layers_block_type and layer_types describe different layers");
  ExpectRefused(alone, "layer_types",
                R"(["full_attention", "hybrid", "hybrid", "linear_attention", "hybrid"])",
                "layer_types has the entry \"full_attention\"");
}

TEST(Zamba2, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "vocab_size", "n_mamba_heads", "mamba_d_state", "adapter_rank", "num_mem_blocks"});
  ExpectRefused(Config(), "layers_block_type", R"(["mamba"])", "layers_block_type");
  ExpectRefused(Config(), "layers_block_type",
                R"(["mamba", "hybrid", "hybrid", "mamba", "attention"])", "layers_block_type");
  ExpectRefused(Config(), "use_conv_bias", "false", "use_conv_bias");
  ExpectRefused(Config(), "mamba_headdim", "16", "mamba_headdim is 16, but mamba_expand");
  ExpectRefused(Config(), "num_key_value_heads", "1", "num_key_value_heads");
}

TEST(Zamba2, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/zamba2");
}

TEST(Zamba2, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("zamba2-1.2b");
}

}  // namespace
}  // namespace adder
