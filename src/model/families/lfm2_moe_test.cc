#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["Lfm2MoeForCausalLM"], "model_type": "lfm2_moe", "hidden_size": 24,
  "intermediate_size": 14, "moe_intermediate_size": 10, "num_hidden_layers": 3,
  "layer_types": ["conv", "full_attention", "conv"], "num_dense_layers": 1, "num_experts": 5,
  "num_experts_per_tok": 2, "norm_topk_prob": true, "routed_scaling_factor": 1.5,
  "use_expert_bias": true, "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 50,
  "norm_eps": 1e-6, "conv_L_cache": 3, "conv_bias": false, "tie_embedding": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Lfm2Moe, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 6u);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[1].mixers[0]).intermediate, 14);
  const auto& moe = std::get<MoeMlp>(plan.blocks[3].mixers[0]);
  EXPECT_EQ(moe.experts, 5);
  EXPECT_EQ(moe.top_k, 2);
  EXPECT_EQ(moe.intermediate, 10);
  EXPECT_EQ(moe.routing.scores, RouterScores::kSigmoid);
  EXPECT_NE(moe.routing.choice_bias, kNoId);
  EXPECT_TRUE(moe.routing.normalize);
  EXPECT_FLOAT_EQ(moe.routing.normalize_eps, 1e-6f);
  EXPECT_FLOAT_EQ(moe.routing.scale, 1.5f);
  EXPECT_EQ(plan.matrices[moe.gate_up[3]].parts[1].module,
            "model.layers.1.feed_forward.experts.3.w3");
  EXPECT_TRUE(std::holds_alternative<Attention>(plan.blocks[2].mixers[0]));
}

TEST(Lfm2Moe, OptionalParts) {
  const Json config = With(With(Config(), "use_expert_bias", "false"), "norm_topk_prob", "false");
  const Plan plan = BuildPlan(config);
  const auto& moe = std::get<MoeMlp>(plan.blocks[3].mixers[0]);
  EXPECT_EQ(moe.routing.choice_bias, kNoId);
  EXPECT_FALSE(moe.routing.normalize);
}

TEST(Lfm2Moe, MlxFilesStackTheExperts) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  const auto& moe = std::get<MoeMlp>(plan.blocks[3].mixers[0]);
  const MatrixPart& part = plan.matrices[moe.down[2]].parts[0];
  EXPECT_EQ(part.module, "model.layers.1.feed_forward.switch_mlp.down_proj");
  EXPECT_EQ(part.experts, 5);
  EXPECT_EQ(part.expert, 2);
  EXPECT_EQ(plan.matrices[std::get<DenseMlp>(plan.blocks[1].mixers[0]).down.weight].parts[0].module,
            "model.layers.0.feed_forward.down_proj");
}

TEST(Lfm2Moe, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "moe_intermediate_size", "num_hidden_layers",
                 "num_experts", "num_experts_per_tok", "num_attention_heads", "vocab_size"});
  ExpectAbsurdScalesRefused(Config(), {"routed_scaling_factor"});
  ExpectRefused(Config(), "num_experts", "65536", "num_experts");
  ExpectRefused(Config(), "num_experts_per_tok", "6", "num_experts_per_tok");
  ExpectRefused(Config(), "num_dense_layers", "-1", "num_dense_layers");
}

TEST(Lfm2Moe, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/lfm2_moe");
  CheckConformanceCase("mlx/lfm2_moe_4bit_g32");
}

TEST(Lfm2Moe, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("lfm2-8b-a1b");
}

}  // namespace
}  // namespace adder
