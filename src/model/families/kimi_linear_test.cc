#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 50,
  "rms_norm_eps": 1e-4, "linear_attn_config": {"full_attn_layers": [2], "kda_layers": [1, 3],
    "num_heads": 3, "head_dim": 4, "short_conv_kernel_size": 3},
  "kv_lora_rank": 10, "q_lora_rank": null, "qk_nope_head_dim": 8, "qk_rope_head_dim": 2,
  "v_head_dim": 7, "mla_use_nope": true, "num_experts": 8, "num_experts_per_token": 2,
  "moe_intermediate_size": 9, "num_shared_experts": 2, "first_k_dense_replace": 1,
  "moe_layer_freq": 1, "moe_router_activation_func": "sigmoid", "moe_renormalize": true,
  "num_expert_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
  "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(KimiLinear, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 6u);
  const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
  EXPECT_TRUE(delta.decay_per_channel);
  EXPECT_EQ(delta.key_heads, 3);
  EXPECT_EQ(delta.value_heads, 3);
  EXPECT_EQ(delta.value_dim, 4);
  EXPECT_EQ(delta.d_conv, 3);
  EXPECT_FLOAT_EQ(delta.query_scale, 0.5f);
  EXPECT_FLOAT_EQ(delta.beta_scale, 1);
  EXPECT_EQ(delta.gate_activation, Activation::kSigmoid);
  EXPECT_FLOAT_EQ(delta.norm.eps, 1e-4f);
  EXPECT_EQ(plan.matrices[delta.decay_proj->up.weight].parts[0].module,
            "model.layers.0.self_attn.f_b_proj");
  EXPECT_EQ(plan.matrices[delta.gate_proj->down.weight].parts[0].module,
            "model.layers.0.self_attn.g_a_proj");
  EXPECT_EQ(plan.vectors[delta.conv_weight].parts[1].tensor,
            "model.layers.0.self_attn.k_conv1d.weight");
  const auto& attention = std::get<LatentAttention>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(attention.latent, 10);
  EXPECT_FALSE(attention.rope.has_value());
  EXPECT_EQ(MixerName(plan.blocks[4].mixers[0]), "GatedDelta");
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[1].mixers[0]).intermediate, 14);
  const auto& moe = std::get<MoeMlp>(plan.blocks[3].mixers[0]);
  EXPECT_EQ(moe.routing.scores, RouterScores::kSigmoid);
  EXPECT_EQ(moe.routing.groups, 4);
  EXPECT_EQ(moe.routing.top_groups, 2);
  EXPECT_TRUE(moe.routing.normalize);
  EXPECT_FLOAT_EQ(moe.routing.scale, 2.5f);
  EXPECT_EQ(plan.vectors[moe.routing.choice_bias].parts[0].tensor,
            "model.layers.1.block_sparse_moe.gate.e_score_correction_bias");
  EXPECT_EQ(plan.matrices[moe.gate_up[5]].parts[0].module,
            "model.layers.1.block_sparse_moe.experts.5.w1");
  EXPECT_EQ(plan.matrices[moe.gate_up[5]].parts[1].module,
            "model.layers.1.block_sparse_moe.experts.5.w3");
  EXPECT_EQ(plan.matrices[moe.down[5]].parts[0].module,
            "model.layers.1.block_sparse_moe.experts.5.w2");
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[3].mixers[1]).intermediate, 18);
}

TEST(KimiLinear, MlxNames) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(plan.vectors[delta.conv_weight].parts[1].tensor,
            "model.layers.0.self_attn.k_conv.conv.weight");
  const auto& moe = std::get<MoeMlp>(plan.blocks[3].mixers[0]);
  EXPECT_EQ(plan.matrices[moe.gate_up[5]].parts[1].module, "model.layers.1.mlp.switch_mlp.up_proj");
  EXPECT_EQ(plan.vectors[moe.routing.choice_bias].parts[0].tensor,
            "model.layers.1.mlp.e_score_correction_bias");
  EXPECT_EQ(ParameterCount(plan), ParameterCount(BuildPlan(Config())));
}

// As transformers writes it: without linear_attn_config.
Json TransformersConfig() {
  Json config = Config();
  for (const char* key :
       {"linear_attn_config", "num_experts", "num_experts_per_token", "num_shared_experts",
        "first_k_dense_replace", "moe_layer_freq", "moe_renormalize", "num_expert_group"}) {
    config.erase(key);
  }
  config.update(ParseJson(R"({
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "mlp_layer_types": ["sparse", "dense", "sparse"], "linear_num_heads": 3, "linear_head_dim": 4,
    "linear_conv_kernel_dim": 3, "num_local_experts": 8, "num_experts_per_tok": 2,
    "n_shared_experts": 2, "norm_topk_prob": false, "n_group": 4, "attention_bias": true})",
                          "test"));
  return config;
}

TEST(KimiLinear, FieldsAsTransformersNamesThem) {
  const Plan plan = BuildPlan(TransformersConfig());
  const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(delta.key_heads, 3);
  EXPECT_EQ(delta.key_dim, 4);
  EXPECT_EQ(delta.d_conv, 3);
  EXPECT_NE(std::get<LatentAttention>(plan.blocks[2].mixers[0]).output.bias, kNoId);
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(moe.experts, 8);
  EXPECT_EQ(moe.top_k, 2);
  EXPECT_EQ(moe.routing.groups, 4);
  EXPECT_FALSE(moe.routing.normalize);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[1].mixers[1]).intermediate, 18);
  EXPECT_EQ(MixerName(plan.blocks[3].mixers[0]), "DenseMlp");
  EXPECT_EQ(MixerName(plan.blocks[5].mixers[0]), "MoeMlp");
}

TEST(KimiLinear, MissingFieldsAreTheReferencesDefaults) {
  Json config = TransformersConfig();
  for (const char* key : {"layer_types", "mlp_layer_types", "linear_num_heads", "linear_head_dim",
                          "linear_conv_kernel_dim", "n_shared_experts", "norm_topk_prob", "n_group",
                          "topk_group", "routed_scaling_factor"}) {
    config.erase(key);
  }
  config["num_hidden_layers"] = 9;
  const Plan plan = BuildPlan(config);
  ASSERT_EQ(plan.blocks.size(), 18u);
  for (size_t layer = 0; layer < 9; ++layer) {
    EXPECT_EQ(MixerName(plan.blocks[2 * layer].mixers[0]),
              layer == 4 || layer == 8 ? "LatentAttention" : "GatedDelta");
    EXPECT_EQ(MixerName(plan.blocks[2 * layer + 1].mixers[0]), layer == 0 ? "DenseMlp" : "MoeMlp");
  }
  const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(delta.key_heads, 32);
  EXPECT_EQ(delta.key_dim, 128);
  EXPECT_EQ(delta.d_conv, 4);
  const auto& moe = std::get<MoeMlp>(plan.blocks[3].mixers[0]);
  EXPECT_EQ(moe.routing.groups, 1);
  EXPECT_TRUE(moe.routing.normalize);
  EXPECT_FLOAT_EQ(moe.routing.scale, 2.446f);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[3].mixers[1]).intermediate, 9);
}

// The original code and mlx-lm do not normalise the weight of a single expert, transformers does.
TEST(KimiLinear, ASingleExpertIsNormalisedAsTheWriterOfTheConfigDoes) {
  const auto normalizes = [](const Json& config) {
    return std::get<MoeMlp>(BuildPlan(config).blocks[5].mixers[0]).routing.normalize;
  };
  EXPECT_FALSE(normalizes(With(Config(), "num_experts_per_token", "1")));
  const Json single = With(TransformersConfig(), "num_experts_per_tok", "1");
  EXPECT_TRUE(normalizes(With(single, "norm_topk_prob", "true")));
  EXPECT_FALSE(normalizes(single));
}

TEST(KimiLinear, FieldsThatContradictEachOtherAreRefused) {
  ExpectRefused(Config(), "num_local_experts", "4", "num_local_experts is 4, but num_experts is 8");
  ExpectRefused(Config(), "n_routed_experts", "4", "n_routed_experts is 4");
  ExpectRefused(Config(), "num_experts_per_tok", "1", "num_experts_per_tok is 1");
  ExpectRefused(Config(), "n_shared_experts", "1", "n_shared_experts is 1");
  ExpectRefused(Config(), "n_group", "2", "n_group is 2");
  ExpectRefused(Config(), "norm_topk_prob", "false", "norm_topk_prob is false");
  ExpectRefused(Config(), "linear_head_dim", "8", "linear_head_dim is 8");
  ExpectRefused(Config(), "linear_num_heads", "4", "linear_num_heads is 4");
  ExpectRefused(Config(), "linear_conv_kernel_dim", "4", "linear_conv_kernel_dim is 4");
  ExpectRefused(Config(), "layer_types",
                R"(["full_attention", "linear_attention", "linear_attention"])", "layer_types");
  ExpectRefused(Config(), "mlp_layer_types", R"(["sparse", "dense", "sparse"])", "mlp_layer_types");
  EXPECT_EQ(BuildError(With(Config(), "mlp_layer_types", R"(["dense", "sparse", "sparse"])")), "");
  ExpectRefused(TransformersConfig(), "mlp_layer_types", R"(["dense", "moe", "sparse"])",
                "\"moe\"");
  ExpectRefused(TransformersConfig(), "mlp_layer_types", R"(["dense"])", "mlp_layer_types has 1");
  ExpectRefused(Config(), "use_grouped_topk", "false", "use_grouped_topk is false");
}

TEST(KimiLinear, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "mla_use_nope", "false", "mla_use_nope is false");
  ExpectRefused(Config(), "moe_router_activation_func", "\"tanh\"", "moe_router_activation_func");
  ExpectRefused(Config(), "topk_method", "\"greedy\"", "topk_method");
  ExpectRefused(Config(), "num_expert_group", "3", "num_expert_group");
  ExpectRefused(Config(), "linear_attn_config", "3", "linear_attn_config");
  const auto layers = [](const char* attention, const char* delta) {
    Json config = Config();
    config["linear_attn_config"]["full_attn_layers"] = ParseJson(attention, "test");
    config["linear_attn_config"]["kda_layers"] = ParseJson(delta, "test");
    return BuildError(config);
  };
  EXPECT_EQ(layers("[2]", "[1, 3]"), "");
  EXPECT_NE(layers("[2]", "[1]").find("name layer 3 once"), std::string::npos);
  EXPECT_NE(layers("[2, 3]", "[1, 3]").find("name layer 3 once"), std::string::npos);
  for (const char* number : {"[0]", "[4]", "[1.5]", "[NaN]", "[-1]"}) {
    EXPECT_NE(layers(number, "[1, 3]").find("full_attn_layers has the entry"), std::string::npos)
        << number;
  }
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "vocab_size", "kv_lora_rank", "num_experts", "num_experts_per_token",
                 "moe_intermediate_size", "moe_layer_freq"});
  ExpectAbsurdSizesRefused(TransformersConfig(), {"linear_num_heads", "linear_head_dim",
                                                  "linear_conv_kernel_dim", "num_local_experts"});
}

TEST(KimiLinear, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/kimi_linear");
}

TEST(KimiLinear, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("kimi-linear-48b-a3b");
}

}  // namespace
}  // namespace adder
