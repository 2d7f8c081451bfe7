#include <gtest/gtest.h>

#include <cmath>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// All sizes differ, so that a swapped pair shows.
const char* const kConfig = R"({
  "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 3, "num_attention_heads": 3, "vocab_size": 50,
  "rms_norm_eps": 1e-5, "rope_theta": 1000000, "kv_lora_rank": 11, "q_lora_rank": 13,
  "qk_nope_head_dim": 7, "qk_rope_head_dim": 4, "v_head_dim": 5, "n_routed_experts": 6,
  "n_shared_experts": 2, "num_experts_per_tok": 2, "moe_intermediate_size": 9,
  "routed_scaling_factor": 1.5, "first_k_dense_replace": 1, "num_nextn_predict_layers": 1,
  "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Glm4MoeLite, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 6u);
  const auto& attention = std::get<LatentAttention>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(attention.heads, 3);
  EXPECT_EQ(attention.latent, 11);
  EXPECT_EQ(attention.nope_dim, 7);
  EXPECT_EQ(attention.rope_dim, 4);
  EXPECT_EQ(attention.value_dim, 5);
  EXPECT_EQ(attention.q_rank, 13);
  EXPECT_FLOAT_EQ(attention.scale, 1.0f / std::sqrt(11.0f));
  EXPECT_TRUE(attention.rope->interleaved);
  EXPECT_FLOAT_EQ(attention.kv_norm.eps, 1e-6f);
  EXPECT_FLOAT_EQ(plan.blocks[0].pre_norm.eps, 1e-5f);
  EXPECT_TRUE(std::holds_alternative<DenseMlp>(plan.blocks[1].mixers[0]));
  const auto& moe = std::get<MoeMlp>(plan.blocks[3].mixers[0]);
  EXPECT_EQ(moe.routing.scores, RouterScores::kSigmoid);
  EXPECT_NE(moe.routing.choice_bias, kNoId);
  EXPECT_FLOAT_EQ(moe.routing.scale, 1.5f);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[3].mixers[1]).intermediate, 18);
  EXPECT_EQ(plan.ignored_tensors.back(), "model.layers.3.*");
}

TEST(Glm4MoeLite, YarnScalesTheScores) {
  const Plan plan = BuildPlan(With(Config(), "rope_scaling", R"({"type": "yarn", "factor": 8,
      "original_max_position_embeddings": 64, "mscale": 0.7, "mscale_all_dim": 1.5})"));
  const auto& attention = std::get<LatentAttention>(plan.blocks[0].mixers[0]);
  EXPECT_FLOAT_EQ(attention.scale, 1.7211241978223866f / std::sqrt(11.0f));
  EXPECT_FLOAT_EQ(attention.rope->factor, 1.1455609079f / 1.3119162312f);
}

TEST(Glm4MoeLite, KeysAndValuesOfAHeadLieSideBySideInHuggingFaceFiles) {
  const Plan plan = BuildPlan(Config());
  const auto& attention = std::get<LatentAttention>(plan.blocks[0].mixers[0]);
  const MatrixPart& absorb = plan.matrices[attention.absorb[2]].parts[0];
  EXPECT_EQ(absorb.module, "model.layers.0.self_attn.kv_b_proj");
  EXPECT_TRUE(absorb.transposed);
  EXPECT_EQ(absorb.row_begin, 24);
  EXPECT_EQ(absorb.row_count, 7);
  const MatrixPart& expand = plan.matrices[attention.expand[2]].parts[0];
  EXPECT_FALSE(expand.transposed);
  EXPECT_EQ(expand.row_begin, 31);
  EXPECT_EQ(expand.row_count, 5);
}

TEST(Glm4MoeLite, MlxFilesHaveAMatrixForEachHead) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  const auto& attention = std::get<LatentAttention>(plan.blocks[0].mixers[0]);
  const MatrixPart& absorb = plan.matrices[attention.absorb[1]].parts[0];
  EXPECT_EQ(absorb.module, "model.layers.0.self_attn.embed_q");
  EXPECT_FALSE(absorb.transposed);
  EXPECT_EQ(absorb.experts, 3);
  EXPECT_EQ(absorb.expert, 1);
  EXPECT_EQ(plan.matrices[attention.expand[1]].parts[0].module,
            "model.layers.0.self_attn.unembed_out");
  EXPECT_EQ(ParameterCount(plan), ParameterCount(BuildPlan(Config())));
}

TEST(Glm4MoeLite, QueriesWithoutALowRankAndLayersByType) {
  const Plan plan = BuildPlan(With(With(Config(), "q_lora_rank", "null"), "mlp_layer_types",
                                   R"(["sparse", "dense", "sparse"])"));
  const auto& attention = std::get<LatentAttention>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(attention.q_rank, 0);
  EXPECT_EQ(plan.matrices[attention.q_b.weight].parts[0].module, "model.layers.0.self_attn.q_proj");
  EXPECT_TRUE(std::holds_alternative<MoeMlp>(plan.blocks[1].mixers[0]));
  EXPECT_TRUE(std::holds_alternative<DenseMlp>(plan.blocks[3].mixers[0]));
}

TEST(Glm4MoeLite, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "v_head_dim",
                 "n_routed_experts", "num_experts_per_tok", "moe_intermediate_size"});
  for (const char* value : {"-1", "1e300", "\"4\"", "0", "3"}) {
    ExpectRefused(Config(), "qk_rope_head_dim", value, "qk_rope_head_dim");
  }
  ExpectRefused(Config(), "mlp_layer_types", R"(["dense"])", "mlp_layer_types");
  ExpectRefused(Config(), "mlp_layer_types", R"(["dense", "moe", "sparse"])", "mlp_layer_types");
  ExpectRefused(Config(), "num_attention_heads", "131072", "num_attention_heads");
  ExpectRefused(Config(), "topk_method", R"("greedy")", "topk_method");
}

TEST(Glm4MoeLite, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/glm4_moe_lite");
}

TEST(Glm4MoeLite, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("glm-4.7-flash");
}

}  // namespace
}  // namespace adder
