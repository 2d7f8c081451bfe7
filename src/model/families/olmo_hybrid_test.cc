#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["OlmoHybridForCausalLM"], "model_type": "olmo_hybrid", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 2,
  "layer_types": ["linear_attention", "full_attention"], "num_attention_heads": 6,
  "num_key_value_heads": 3, "vocab_size": 50, "rms_norm_eps": 1e-6, "linear_num_key_heads": 3,
  "linear_num_value_heads": 3, "linear_key_head_dim": 4, "linear_value_head_dim": 7,
  "linear_conv_kernel_dim": 3, "linear_allow_neg_eigval": true, "rope_parameters": null,
  "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(OlmoHybrid, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 4u);
  const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(delta.key_dim, 4);
  EXPECT_EQ(delta.value_dim, 7);
  EXPECT_FLOAT_EQ(delta.query_scale, 0.5f);
  EXPECT_FLOAT_EQ(delta.beta_scale, 2);
  EXPECT_FLOAT_EQ(delta.norm.eps, 1e-5f);  // not rms_norm_eps
  const std::vector<MatrixPart>& parts = plan.matrices[delta.in_proj.weight].parts;
  ASSERT_EQ(parts.size(), 6u);
  EXPECT_EQ(parts[3].module, "model.layers.0.linear_attn.b_proj");
  EXPECT_EQ(parts[4].module, "model.layers.0.linear_attn.a_proj");
  EXPECT_EQ(parts[5].module, "model.layers.0.linear_attn.g_proj");
  EXPECT_FALSE(plan.blocks[0].skip_pre_norm);
  EXPECT_FALSE(plan.blocks[0].post_norm.has_value());
  EXPECT_FLOAT_EQ(plan.blocks[0].pre_norm.eps, 1e-6f);
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(attention.rope->theta, 10000.0);
  EXPECT_EQ(VectorSize(plan.vectors[attention.q_norm->weight]), 24);
  EXPECT_EQ(VectorSize(plan.vectors[attention.k_norm->weight]), 12);
  for (size_t block : {2u, 3u}) {
    EXPECT_TRUE(plan.blocks[block].skip_pre_norm);
    ASSERT_TRUE(plan.blocks[block].post_norm.has_value());
  }
  EXPECT_EQ(plan.vectors[plan.blocks[2].post_norm->weight].parts[0].tensor,
            "model.layers.1.post_attention_layernorm.weight");
  EXPECT_EQ(plan.vectors[plan.blocks[3].post_norm->weight].parts[0].tensor,
            "model.layers.1.post_feedforward_layernorm.weight");
}

TEST(OlmoHybrid, PositionsMayBeAbsent) {
  const auto rope = [](const Json& config) {
    return std::get<Attention>(BuildPlan(config).blocks[2].mixers[0]).rope;
  };
  EXPECT_FALSE(rope(With(Config(), "rope_parameters", R"({"rope_theta": null})")).has_value());
  EXPECT_EQ(rope(With(Config(), "rope_parameters", R"({"rope_theta": 500000})"))->theta, 500000);
  EXPECT_EQ(rope(With(Config(), "rope_theta", "700"))->theta, 700);
}

TEST(OlmoHybrid, Defaults) {
  Json config = Without(Without(Config(), "layer_types"), "linear_value_head_dim");
  config["num_hidden_layers"] = 4;
  config["linear_allow_neg_eigval"] = false;
  const Plan plan = BuildPlan(config);
  EXPECT_EQ(MixerName(plan.blocks[4].mixers[0]), "GatedDelta");
  EXPECT_EQ(MixerName(plan.blocks[6].mixers[0]), "Attention");
  const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(delta.value_dim, 8);
  EXPECT_FLOAT_EQ(delta.beta_scale, 1);
}

TEST(OlmoHybrid, HeadsOfTheDeltaRuleByDefault) {
  Json config = Config();
  for (const char* key : {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
                          "linear_value_head_dim"}) {
    config.erase(key);
  }
  const auto delta_of = [](const Json& edited) {
    return std::get<GatedDelta>(BuildPlan(edited).blocks[0].mixers[0]);
  };
  const GatedDelta delta = delta_of(config);
  EXPECT_EQ(delta.key_heads, 6);
  EXPECT_EQ(delta.value_heads, 6);
  EXPECT_EQ(delta.key_dim, 3);  // 0.75 x 24 / 6
  EXPECT_EQ(delta.value_dim, 6);
  // The value heads are as many as the attention's, not as the key heads.
  const GatedDelta fewer = delta_of(With(config, "linear_num_key_heads", "2"));
  EXPECT_EQ(fewer.value_heads, 6);
  EXPECT_EQ(fewer.key_dim, 9);
  ExpectRefused(config, "linear_num_key_heads", "19", "linear_num_value_heads");
  ExpectRefused(With(config, "linear_num_value_heads", "19"), "linear_num_key_heads", "19",
                "linear_key_head_dim");
}

TEST(OlmoHybrid, FewLayersHaveAttentionAllTheSame) {
  const Plan plan = BuildPlan(Without(Config(), "layer_types"));
  EXPECT_EQ(MixerName(plan.blocks[0].mixers[0]), "GatedDelta");
  EXPECT_EQ(MixerName(plan.blocks[2].mixers[0]), "Attention");
}

TEST(OlmoHybrid, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "linear_use_gate", "false", "linear_use_gate is false");
  ExpectRefused(Config(), "hidden_act", "\"gelu\"", "hidden_act");
  ExpectRefused(Config(), "linear_num_value_heads", "4", "linear_num_value_heads (4)");
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "vocab_size", "linear_num_key_heads", "linear_num_value_heads",
                 "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"});
}

TEST(OlmoHybrid, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/olmo_hybrid");
}

}  // namespace
}  // namespace adder
