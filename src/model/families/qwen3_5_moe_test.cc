#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "model_type": "qwen3_5_moe_text", "hidden_size": 24, "num_hidden_layers": 2,
  "full_attention_interval": 2, "num_attention_heads": 6, "num_key_value_heads": 3,
  "head_dim": 8, "vocab_size": 50, "rms_norm_eps": 1e-5, "linear_num_key_heads": 3,
  "linear_num_value_heads": 6, "linear_key_head_dim": 4, "linear_value_head_dim": 7,
  "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 9,
  "shared_expert_intermediate_size": 11,
  "rope_parameters": {"rope_type": "default", "rope_theta": 5000, "partial_rotary_factor": 0.25}})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Qwen35Moe, HuggingFaceFilesStackGateAndUpOfTheExperts) {
  const Plan plan = BuildPlan(Config());
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_TRUE(moe.routing.plain());
  ASSERT_EQ(plan.matrices[moe.gate_up[3]].parts.size(), 1u);
  const MatrixPart& gate_up = plan.matrices[moe.gate_up[3]].parts[0];
  EXPECT_EQ(gate_up.module, "model.language_model.layers.0.mlp.experts.gate_up_proj");
  EXPECT_TRUE(gate_up.bare_name);
  EXPECT_EQ(gate_up.rows, 18);
  EXPECT_EQ(gate_up.expert, 3);
  const MatrixPart& down = plan.matrices[moe.down[3]].parts[0];
  EXPECT_EQ(down.module, "model.language_model.layers.0.mlp.experts.down_proj");
  EXPECT_TRUE(down.bare_name);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[1].mixers[1]).intermediate, 11);
}

TEST(Qwen35Moe, MlxFilesStackThemApart) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  const MatrixPart& up = plan.matrices[moe.gate_up[3]].parts[1];
  EXPECT_EQ(up.module, "language_model.model.layers.0.mlp.switch_mlp.up_proj");
  EXPECT_FALSE(up.bare_name);
}

TEST(Qwen35Moe, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(Config(), {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                                      "shared_expert_intermediate_size"});
}

TEST(Qwen35Moe, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/qwen3_5_moe");
}

TEST(Qwen35Moe, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("qwen3.5-35b-a3b");
}

}  // namespace
}  // namespace adder
