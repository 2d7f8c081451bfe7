#include <gtest/gtest.h>

#include <cmath>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["FalconH1ForCausalLM"], "model_type": "falcon_h1", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 2, "num_attention_heads": 6,
  "num_key_value_heads": 3, "head_dim": 4, "vocab_size": 50, "rms_norm_eps": 1e-5,
  "mamba_n_heads": 6, "mamba_d_head": 5, "mamba_d_ssm": 30, "mamba_expand": 2,
  "mamba_n_groups": 2, "mamba_d_state": 7, "mamba_d_conv": 4, "mamba_chunk_size": 32,
  "mamba_rms_norm": true, "mamba_norm_before_gate": true, "rope_theta": 100000000000.0,
  "attention_in_multiplier": 1.1, "attention_out_multiplier": 0.9, "embedding_multiplier": 2.5,
  "key_multiplier": 0.6, "lm_head_multiplier": 0.05, "mlp_multipliers": [0.8, 0.7],
  "ssm_in_multiplier": 1.2, "ssm_multipliers": [0.7, 0.9, 0.8, 1.3, 1.1],
  "ssm_out_multiplier": 0.5, "projectors_bias": true, "tie_word_embeddings": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }
const Mamba2& MambaOf(const Plan& plan) { return std::get<Mamba2>(plan.blocks[0].mixers[0]); }
const Attention& AttentionOf(const Plan& plan) {
  return std::get<Attention>(plan.blocks[0].mixers[1]);
}
const DenseMlp& MlpOf(const Plan& plan) { return std::get<DenseMlp>(plan.blocks[1].mixers[0]); }

TEST(FalconH1, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 4u);
  EXPECT_EQ(MambaOf(plan).inner(), 30);
  EXPECT_EQ(MambaOf(plan).gated_norm->groups, 2);
  EXPECT_TRUE(MambaOf(plan).norm_before_gate);
  EXPECT_EQ(MambaOf(plan).in_proj.bias, kNoId);
  EXPECT_NE(MambaOf(plan).out_proj.bias, kNoId);
  // Without a norm there is no order.
  const Plan plain = BuildPlan(With(Config(), "mamba_rms_norm", "false"));
  EXPECT_FALSE(MambaOf(plain).norm_before_gate);
  EXPECT_FALSE(MambaOf(plain).gated_norm.has_value());
}

TEST(FalconH1, MultipliersOfHuggingFaceFiles) {
  const Plan plan = BuildPlan(Config());
  EXPECT_EQ(plan.embedding_scale, 2.5f);
  EXPECT_EQ(plan.logits_scale, 0.05f);
  EXPECT_FLOAT_EQ(AttentionOf(plan).scale, 0.6f / 2);
  EXPECT_EQ(AttentionOf(plan).qkv.input_scale, 1.1f);
  EXPECT_EQ(AttentionOf(plan).output.row_scales[0].factor, 0.9f);
  const std::vector<RowScale>& parts = MambaOf(plan).in_proj.row_scales;
  ASSERT_EQ(parts.size(), 5u);
  const int64_t rows[] = {30, 30, 14, 14, 6};
  const float factors[] = {0.7f, 0.9f, 0.8f, 1.3f, 1.1f};
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(parts[i].rows, rows[i]);
    EXPECT_EQ(parts[i].factor, factors[i]);
  }
  EXPECT_EQ(MambaOf(plan).in_proj.input_scale, 1.2f);
  EXPECT_EQ(MambaOf(plan).out_proj.row_scales[0].factor, 0.5f);
  ASSERT_EQ(MlpOf(plan).gate_up.row_scales.size(), 2u);
  EXPECT_EQ(MlpOf(plan).gate_up.row_scales[0].factor, 0.8f);
  EXPECT_EQ(MlpOf(plan).gate_up.row_scales[1].factor, 1.0f);
  EXPECT_EQ(MlpOf(plan).down.row_scales[0].factor, 0.7f);
}

TEST(FalconH1, MlxFilesHaveAllMultipliersButTheKeysInTheirWeights) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  EXPECT_EQ(plan.embedding_scale, 1.0f);
  EXPECT_FLOAT_EQ(plan.logits_scale, 0.05f / 2.5f);
  EXPECT_FLOAT_EQ(AttentionOf(plan).scale, 0.6f / 2);
  EXPECT_FALSE(AttentionOf(plan).qkv.scaled());
  EXPECT_FALSE(AttentionOf(plan).output.scaled());
  EXPECT_FALSE(MambaOf(plan).in_proj.scaled());
  EXPECT_FALSE(MambaOf(plan).out_proj.scaled());
  EXPECT_FALSE(MlpOf(plan).gate_up.scaled());
  EXPECT_FALSE(MlpOf(plan).down.scaled());
  const Json untied = With(Config(), "tie_word_embeddings", "false");
  EXPECT_EQ(BuildPlan(untied, TensorNames::Planned(true)).logits_scale, 1.0f);
}

TEST(FalconH1, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "attn_layer_indices", "[1]", "attn_layer_indices is [1]");
  ExpectRefused(Config(), "mamba_use_mlp", "false", "mamba_use_mlp is false");
  ExpectRefused(Config(), "mamba_d_ssm", "31", "mamba_d_ssm is 31");
  ExpectRefused(Config(), "ssm_multipliers", "[1, 2]", "ssm_multipliers");
  ExpectRefused(Config(), "ssm_multipliers", "[1, 2, NaN, 4, 5]", "ssm_multipliers");
  ExpectRefused(Config(), "mlp_multipliers", "[1]", "mlp_multipliers");
  ExpectAbsurdScalesRefused(Config(), {"attention_in_multiplier", "key_multiplier",
                                       "ssm_out_multiplier", "lm_head_multiplier"});
  ExpectAbsurdSizesRefused(Config(), {"hidden_size", "intermediate_size", "num_hidden_layers",
                                      "vocab_size", "mamba_n_heads", "mamba_d_state"});
}

TEST(FalconH1, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/falcon_h1_norm_after");
  CheckConformanceCase("models/falcon_h1_norm_before");
  CheckConformanceCase("models/falcon_h1_plain");
  EXPECT_EQ(CheckConformanceCase("mlx/falcon_h1_4bit").embedding_scale, 1.0f);
}

TEST(FalconH1, RealGeometries) {
  ADDER_SKIP_WITHOUT("geometries");
  for (const char* name :
       {"falcon-h1-tiny-90m-instruct", "falcon-h1-0.5b", "falcon-h1-1.5b", "falcon-h1-7b"}) {
    CheckGeometry(name);
  }
}

}  // namespace
}  // namespace adder
