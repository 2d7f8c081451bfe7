#include <gtest/gtest.h>

#include <limits>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["NemotronHForCausalLM"], "model_type": "nemotron_h", "hidden_size": 24,
  "hybrid_override_pattern": "ME*-", "num_hidden_layers": 4, "intermediate_size": 14,
  "num_attention_heads": 6, "num_key_value_heads": 3, "attention_head_dim": 10, "vocab_size": 50,
  "layer_norm_epsilon": 1e-6, "mamba_num_heads": 6, "mamba_head_dim": 5, "n_groups": 2,
  "ssm_state_size": 7, "conv_kernel": 4, "chunk_size": 32, "time_step_limit": [0.0, Infinity],
  "mlp_hidden_act": "relu2", "n_routed_experts": 8, "n_shared_experts": 1,
  "moe_intermediate_size": 9, "moe_shared_expert_intermediate_size": 11,
  "num_experts_per_tok": 2, "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2,
  "norm_topk_prob": true, "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(NemotronH, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 4u);
  const auto& mamba = std::get<Mamba2>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(mamba.inner(), 30);  // not expand x hidden_size
  EXPECT_EQ(mamba.gated_norm->groups, 2);
  EXPECT_FLOAT_EQ(mamba.gated_norm->eps, 1e-6f);
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_FALSE(moe.gated);
  EXPECT_EQ(moe.activation, Activation::kRelu2);
  EXPECT_EQ(moe.intermediate, 9);
  EXPECT_EQ(moe.routing.scores, RouterScores::kSigmoid);
  EXPECT_EQ(moe.routing.groups, 4);
  EXPECT_EQ(moe.routing.top_groups, 2);
  EXPECT_TRUE(moe.routing.normalize);
  EXPECT_EQ(moe.routing.scale, 2.5f);
  EXPECT_EQ(plan.vectors[moe.routing.choice_bias].parts[0].tensor,
            "backbone.layers.1.mixer.gate.e_score_correction_bias");
  EXPECT_TRUE(plan.matrices[moe.router.weight].always_float);
  const auto& shared = std::get<DenseMlp>(plan.blocks[1].mixers[1]);
  EXPECT_FALSE(shared.gated);
  EXPECT_EQ(shared.intermediate, 11);
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(attention.head_dim, 10);
  EXPECT_FALSE(attention.rope.has_value());
  const auto& mlp = std::get<DenseMlp>(plan.blocks[3].mixers[0]);
  EXPECT_FALSE(mlp.gated);
  EXPECT_EQ(mlp.activation, Activation::kRelu2);
}

TEST(NemotronH, LayersMayBeListedByName) {
  Json config = Without(Without(Config(), "hybrid_override_pattern"), "num_hidden_layers");
  config["layers_block_type"] = {"attention", "mlp", "mamba", "moe"};
  const Plan plan = BuildPlan(config);
  EXPECT_EQ(MixerName(plan.blocks[0].mixers[0]), "Attention");
  EXPECT_EQ(MixerName(plan.blocks[1].mixers[0]), "DenseMlp");
  EXPECT_EQ(MixerName(plan.blocks[2].mixers[0]), "Mamba2");
  EXPECT_EQ(MixerName(plan.blocks[3].mixers[0]), "MoeMlp");
}

TEST(NemotronH, LayersAreNamedInBothVocabularies) {
  const std::string plan = PlanString(BuildPlan(Config()));
  const Json unlisted = Without(Config(), "hybrid_override_pattern");
  for (const char* field : {"hybrid_override_pattern", "layers_block_type", "layer_types"}) {
    for (const char* layers :
         {R"(["mamba", "moe", "attention", "mlp"])",
          R"(["linear_attention", "moe", "full_attention", "mlp"])", R"(["M", "E", "*", "-"])"}) {
      EXPECT_EQ(PlanString(BuildPlan(With(unlisted, field, layers))), plan) << field << layers;
    }
    ExpectRefused(unlisted, field, R"(["mamba", "conv3", "attention", "mlp"])", field);
    ExpectRefused(unlisted, field, "[]", field);
  }
  EXPECT_NE(BuildError(unlisted).find("lacks the field hybrid_override_pattern"),
            std::string::npos);
}

TEST(NemotronH, FieldsThatDescribeTheLayersHaveToAgree) {
  const std::string plan = PlanString(BuildPlan(Config()));
  const std::string layers = R"(["linear_attention", "moe", "full_attention", "mlp"])";
  EXPECT_EQ(PlanString(BuildPlan(With(Config(), "layers_block_type", layers))), plan);
  EXPECT_EQ(PlanString(BuildPlan(With(Config(), "layer_types", layers))), plan);
  for (const char* field : {"layers_block_type", "layer_types"}) {
    for (const char* other : {R"(["mamba", "attention", "moe", "mlp"])", R"(["mamba", "moe"])"}) {
      ExpectRefused(Config(), field, other,
                    Concat("hybrid_override_pattern and ", field, " describe different layers"));
    }
  }
}

// Each old name counts before the new one, which Config() has.
TEST(NemotronH, FieldsHaveOldNames) {
  const auto mamba_with = [](const char* key, const char* value) {
    return std::get<Mamba2>(BuildPlan(With(Config(), key, value)).blocks[0].mixers[0]);
  };
  EXPECT_EQ(mamba_with("mamba_n_groups", "3").groups, 3);
  EXPECT_EQ(mamba_with("mamba_d_conv", "5").d_conv, 5);
  EXPECT_EQ(mamba_with("mamba_chunk_size", "64").chunk, 64);
  EXPECT_EQ(mamba_with("mamba_dt_limit", "[0.01, 0.5]").dt_min, 0.01f);
  EXPECT_EQ(mamba_with("mamba_dt_limit", "[0.01, 0.5]").dt_max, 0.5f);
  EXPECT_NE(mamba_with("use_conv_bias", "true").conv_bias, kNoId);
  EXPECT_EQ(mamba_with("mamba_conv_bias", "false").conv_bias, kNoId);
  const Json renamed = With(Without(Config(), "n_routed_experts"), "num_local_experts", "12");
  EXPECT_EQ(std::get<MoeMlp>(BuildPlan(renamed).blocks[1].mixers[0]).experts, 12);
}

TEST(NemotronH, TimeStepMinIsNoLimit) {
  const Json initialised = With(With(Config(), "time_step_min", "0.001"), "time_step_max", "0.1");
  for (const bool mlx : {false, true}) {
    const auto mamba_of = [mlx](const Json& config) {
      return std::get<Mamba2>(BuildPlan(config, TensorNames::Planned(mlx)).blocks[0].mixers[0]);
    };
    for (const Json& config : {initialised, Without(initialised, "time_step_limit")}) {
      EXPECT_EQ(mamba_of(config).dt_min, 0.0f);
      EXPECT_EQ(mamba_of(config).dt_max, std::numeric_limits<float>::infinity());
    }
    const Mamba2 limited = mamba_of(With(initialised, "time_step_limit", "[0.01, 0.5]"));
    EXPECT_EQ(limited.dt_min, 0.01f);
    EXPECT_EQ(limited.dt_max, 0.5f);
  }
}

TEST(NemotronH, LayersThatPredictAheadAreIgnored) {
  ADDER_SKIP_WITHOUT("conformance");
  const std::filesystem::path directory = SharedFolder() / "conformance/models/nemotron_h_moe";
  std::map<std::string, Shape> shapes = CheckpointShapes(directory);
  shapes["mtp.layers.0.eh_proj.weight"] = {64, 128};
  shapes["mtp.layers.1.mixer.experts.0.up_proj.weight"] = {24, 64};
  ExpectClaimsAll(BuildPlan(ReadJsonFile(directory / "config.json"), NamesOf(shapes)), shapes);
}

TEST(NemotronH, MlxFilesStackTheExperts) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(plan.matrices[moe.gate_up[3]].parts[0].module,
            "backbone.layers.1.mixer.switch_mlp.fc1");
  EXPECT_EQ(plan.matrices[moe.down[3]].parts[0].module, "backbone.layers.1.mixer.switch_mlp.fc2");
}

TEST(NemotronH, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "hybrid_override_pattern", "\"MX*-\"", "hybrid_override_pattern");
  ExpectRefused(Config(), "hybrid_override_pattern", "\"\"", "hybrid_override_pattern");
  ExpectRefused(Config(), "num_hidden_layers", "5", "num_hidden_layers is 5");
  ExpectRefused(Config(), "moe_latent_size", "8", "moe_latent_size is 8");
  ExpectRefused(Config(), "sliding_window", "8", "sliding_window is 8");
  ExpectRefused(Config(), "mlp_hidden_act", "\"tanh\"", "mlp_hidden_act is \"tanh\"");
  ExpectRefused(Config(), "mamba_proj_bias", "true", "mamba_proj_bias is true");
  ExpectRefused(Config(), "n_group", "3", "n_group");
  ExpectRefused(Config(), "topk_group", "5", "topk_group");
  ExpectAbsurdSizesRefused(Config(),
                           {"hidden_size", "intermediate_size", "vocab_size", "mamba_num_heads",
                            "ssm_state_size", "n_routed_experts", "moe_intermediate_size"});
}

TEST(NemotronH, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/nemotron_h_dense");
  CheckConformanceCase("models/nemotron_h_moe");
  CheckConformanceCase("mlx/nemotron_h_4bit");
}

TEST(NemotronH, RealGeometries) {
  ADDER_SKIP_WITHOUT("geometries");
  for (const char* name :
       {"nemotron-3-nano-30b-a3b", "nemotron-h-8b", "nvidia-nemotron-nano-9b-v2"}) {
    CheckGeometry(name);
  }
}

}  // namespace
}  // namespace adder
