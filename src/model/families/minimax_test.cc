#include <gtest/gtest.h>

#include <cmath>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// All sizes differ, so that a swapped pair shows.
const char* const kConfig = R"({
  "architectures": ["MiniMaxForCausalLM"], "model_type": "minimax", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 3, "vocab_size": 50, "rms_norm_eps": 1e-5,
  "layer_types": ["linear_attention", "full_attention", "linear_attention"],
  "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 10, "rotary_dim": 4,
  "rope_theta": 5000, "num_local_experts": 5, "num_experts_per_tok": 2,
  "linear_attn_alpha_factor": 1.2, "linear_attn_beta_factor": 0.9,
  "full_attn_alpha_factor": 1.3, "full_attn_beta_factor": 0.8,
  "mlp_alpha_factor": 1.1, "mlp_beta_factor": 0.7, "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

const LightningAttention& LightningOf(const Plan& plan, size_t block) {
  return std::get<LightningAttention>(plan.blocks[block].mixers[0]);
}

TEST(MiniMax, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 6u);
  const LightningAttention& lightning = LightningOf(plan, 0);
  EXPECT_EQ(lightning.heads, 6);
  EXPECT_EQ(lightning.head_dim, 10);
  EXPECT_FLOAT_EQ(lightning.norm.eps, 1e-6f);
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(attention.kv_heads, 3);
  EXPECT_EQ(attention.rope->rotary_dim, 4);
  EXPECT_EQ(attention.rope->theta, 5000.0);
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_TRUE(moe.routing.plain());
  EXPECT_EQ(plan.matrices[moe.gate_up[3]].parts[1].module,
            "model.layers.0.block_sparse_moe.experts.3.w3");
  EXPECT_EQ(plan.matrices[moe.down[3]].parts[0].module,
            "model.layers.0.block_sparse_moe.experts.3.w2");
}

TEST(MiniMax, TheResidualIsItsNormWeighed) {
  const Plan plan = BuildPlan(Config());
  for (const Block& block : plan.blocks) EXPECT_TRUE(block.rule.normed);
  EXPECT_FLOAT_EQ(plan.blocks[0].rule.keep, 1.2f);
  EXPECT_FLOAT_EQ(plan.blocks[0].residual_scale, 0.9f);
  EXPECT_FLOAT_EQ(plan.blocks[1].rule.keep, 1.1f);
  EXPECT_FLOAT_EQ(plan.blocks[1].residual_scale, 0.7f);
  EXPECT_FLOAT_EQ(plan.blocks[2].rule.keep, 1.3f);
  EXPECT_FLOAT_EQ(plan.blocks[2].residual_scale, 0.8f);
}

TEST(MiniMax, SlopesFallWithTheHeadAndTheLayer) {
  const Plan plan = BuildPlan(Config());
  const double base = std::pow(2.0, -8.0 / 6);
  EXPECT_NEAR(LightningOf(plan, 0).slopes[0], base * (1 + 1e-5), 1e-6);
  EXPECT_NEAR(LightningOf(plan, 0).slopes[5], std::pow(base, 6) * (1 + 1e-5), 1e-8);
  EXPECT_NEAR(LightningOf(plan, 4).slopes[0], base * (1 - 2 / 2.00001 + 1e-5), 1e-7);
}

TEST(MiniMax, LayerKindsByListAndByDefault) {
  Json config = Without(Config(), "layer_types");
  EXPECT_TRUE(std::holds_alternative<Attention>(BuildPlan(config).blocks[0].mixers[0]));
  config["attn_type_list"] = {0, 0, 1};
  config["postnorm"] = true;
  const Plan plan = BuildPlan(config);
  EXPECT_TRUE(std::holds_alternative<LightningAttention>(plan.blocks[2].mixers[0]));
  EXPECT_TRUE(std::holds_alternative<Attention>(plan.blocks[4].mixers[0]));
}

// The names and the weights of the published MiniMax-Text-01.
TEST(MiniMax, FieldsOfTheOriginalCode) {
  Json config = Config();
  for (const char* part : {"linear_attn", "full_attn", "mlp"}) {
    config.erase(std::string(part) + "_alpha_factor");
    config.erase(std::string(part) + "_beta_factor");
  }
  config["layernorm_full_attention_alpha"] = 3.5565588200778455;
  config["layernorm_full_attention_beta"] = 1.5;
  config["layernorm_linear_attention_alpha"] = 2.5;
  config["layernorm_linear_attention_beta"] = 0.5;
  config["layernorm_mlp_alpha"] = 4.5;
  config["layernorm_mlp_beta"] = 0.25;
  config["shared_intermediate_size"] = 0;
  config["shared_moe_mode"] = "sigmoid";
  config["postnorm"] = true;
  const Plan plan = BuildPlan(config);
  EXPECT_FLOAT_EQ(plan.blocks[0].rule.keep, 2.5f);
  EXPECT_FLOAT_EQ(plan.blocks[0].residual_scale, 0.5f);
  EXPECT_FLOAT_EQ(plan.blocks[1].rule.keep, 4.5f);
  EXPECT_FLOAT_EQ(plan.blocks[1].residual_scale, 0.25f);
  EXPECT_FLOAT_EQ(plan.blocks[2].rule.keep, 3.5565588200778455f);
  EXPECT_FLOAT_EQ(plan.blocks[2].residual_scale, 1.5f);
  EXPECT_NO_THROW(BuildPlan(With(config, "mlp_alpha_factor", "4.5")));
  ExpectRefused(config, "mlp_alpha_factor", "4", "layernorm_mlp_alpha is 4.5");
  ExpectRefused(config, "layernorm_full_attention_beta", "NaN", "layernorm_full_attention_beta");
  ExpectRefused(config, "shared_intermediate_size", "64", "shared_intermediate_size is 64");
  // The original code's default is false.
  EXPECT_NE(BuildError(Without(config, "postnorm")).find("lacks postnorm"), std::string::npos);
  ExpectRefused(config, "attn_type_list", "[0, 0, 1]", "layer_types and attn_type_list");
  EXPECT_NO_THROW(BuildPlan(With(config, "attn_type_list", "[0, 1, 0]")));
}

TEST(MiniMax, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "vocab_size", "head_dim", "num_local_experts", "num_experts_per_tok"});
  ExpectAbsurdScalesRefused(Config(), {"mlp_alpha_factor", "full_attn_beta_factor"});
  ExpectRefused(Config(), "layer_types", R"(["full_attention"])", "layer_types");
  ExpectRefused(Config(), "layer_types", R"(["full_attention", "mamba", "full_attention"])",
                "layer_types");
  ExpectRefused(Without(Config(), "layer_types"), "attn_type_list", "[0, 2, 1]", "attn_type_list");
  ExpectRefused(Without(Config(), "layer_types"), "attn_type_list", "[0, 1]", "attn_type_list");
  ExpectRefused(Config(), "rotary_dim", "12", "rotary_dim");
  ExpectRefused(Config(), "partial_rotary_factor", "1", "rotary_dim is 4");
  ExpectRefused(Without(Config(), "rotary_dim"), "partial_rotary_factor", "0.4", "makes it 4");
  ExpectRefused(Config(), "num_experts", "6", "num_experts is 6, but num_local_experts is 5");
  ExpectRefused(Config(), "num_attention_heads", "131072", "num_attention_heads");
  ExpectRefused(Config(), "sliding_window", "64", "sliding_window");
  ExpectRefused(Config(), "postnorm", "false", "postnorm");
}

TEST(MiniMax, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/minimax");
}

}  // namespace
}  // namespace adder
