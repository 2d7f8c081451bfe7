#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["GraniteMoeHybridForCausalLM"], "model_type": "granitemoehybrid",
  "hidden_size": 24, "intermediate_size": 10, "shared_intermediate_size": 14,
  "num_hidden_layers": 2, "layer_types": ["mamba", "attention"], "num_attention_heads": 6,
  "num_key_value_heads": 3, "vocab_size": 50, "rms_norm_eps": 1e-5, "mamba_n_heads": 6,
  "mamba_d_head": 8, "mamba_expand": 2, "mamba_n_groups": 2, "mamba_d_state": 5,
  "mamba_d_conv": 4, "mamba_chunk_size": 32, "mamba_conv_bias": true, "mamba_proj_bias": false,
  "num_local_experts": 3, "num_experts_per_tok": 2, "embedding_multiplier": 12,
  "attention_multiplier": 0.0625, "residual_multiplier": 0.22, "logits_scaling": 8,
  "position_embedding_type": "nope", "rope_theta": 10000, "normalization_function": "rmsnorm",
  "hidden_act": "silu", "tie_word_embeddings": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }
// A config as of the models without experts.
Json Dense() {
  return With(With(With(Config(), "num_local_experts", "0"), "num_experts_per_tok", "0"),
              "intermediate_size", "14");
}

const Mamba2& MambaOf(const Plan& plan) { return std::get<Mamba2>(plan.blocks[0].mixers[0]); }
const Attention& AttentionOf(const Plan& plan) {
  return std::get<Attention>(plan.blocks[2].mixers[0]);
}

TEST(GraniteMoeHybrid, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  EXPECT_EQ(plan.embedding_scale, 12.0f);
  EXPECT_EQ(plan.logits_scale, 0.125f);
  ASSERT_EQ(plan.blocks.size(), 4u);
  for (const Block& block : plan.blocks) EXPECT_EQ(block.residual_scale, 0.22f);
  EXPECT_EQ(plan.blocks[1].layer, 0);
  EXPECT_EQ(plan.blocks[2].layer, 1);
  EXPECT_EQ(plan.vectors[plan.blocks[0].pre_norm.weight].parts[0].tensor,
            "model.layers.0.input_layernorm.weight");
  EXPECT_EQ(plan.vectors[plan.blocks[1].pre_norm.weight].parts[0].tensor,
            "model.layers.0.post_attention_layernorm.weight");

  const Mamba2& mamba = MambaOf(plan);
  EXPECT_EQ(mamba.heads, 6);
  EXPECT_EQ(mamba.head_dim, 8);
  EXPECT_EQ(mamba.groups, 2);
  EXPECT_EQ(mamba.d_state, 5);
  EXPECT_EQ(mamba.chunk, 32);
  EXPECT_EQ(mamba.gated_norm->groups, 1);
  EXPECT_FLOAT_EQ(mamba.gated_norm->eps, 1e-5f);
  const Attention& attention = AttentionOf(plan);
  EXPECT_EQ(attention.scale, 0.0625f);
  EXPECT_EQ(attention.kv_heads, 3);
  EXPECT_FALSE(attention.rope.has_value());

  ASSERT_EQ(plan.blocks[1].mixers.size(), 2u);
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(moe.experts, 3);
  EXPECT_EQ(moe.top_k, 2);
  EXPECT_EQ(moe.intermediate, 10);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[1].mixers[1]).intermediate, 14);
  const MatrixRef& second = plan.matrices[moe.gate_up[1]];
  ASSERT_EQ(second.parts.size(), 1u);
  EXPECT_EQ(second.parts[0].module, "model.layers.0.block_sparse_moe.input_linear");
  EXPECT_EQ(second.parts[0].experts, 3);
  EXPECT_EQ(second.parts[0].expert, 1);
  EXPECT_EQ(second.parts[0].rows, 20);
}

TEST(GraniteMoeHybrid, MlxNamesSplitTheExperts) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  const MatrixRef& last = plan.matrices[moe.gate_up[2]];
  ASSERT_EQ(last.parts.size(), 2u);
  EXPECT_EQ(last.parts[0].module, "model.layers.0.block_sparse_moe.switch_mlp.gate_proj");
  EXPECT_EQ(last.parts[1].module, "model.layers.0.block_sparse_moe.switch_mlp.up_proj");
  EXPECT_EQ(last.parts[1].rows, 10);
  EXPECT_EQ(last.parts[1].expert, 2);
  // The shared MLP beside experts stays fused.
  const auto& shared = std::get<DenseMlp>(plan.blocks[1].mixers[1]);
  EXPECT_EQ(plan.matrices[shared.gate_up.weight].parts[0].module,
            "model.layers.0.shared_mlp.input_linear");
}

TEST(GraniteMoeHybrid, DenseNames) {
  const Plan fused = BuildPlan(Dense());
  ASSERT_EQ(fused.blocks[1].mixers.size(), 1u);
  const auto& fused_mlp = std::get<DenseMlp>(fused.blocks[1].mixers[0]);
  EXPECT_EQ(fused.matrices[fused_mlp.gate_up.weight].parts[0].module,
            "model.layers.0.shared_mlp.input_linear");
  const Plan split = BuildPlan(Dense(), TensorNames::Planned(true));
  const auto& split_mlp = std::get<DenseMlp>(split.blocks[1].mixers[0]);
  EXPECT_EQ(split.matrices[split_mlp.gate_up.weight].parts[0].module,
            "model.layers.0.mlp.gate_proj");
  EXPECT_EQ(split_mlp.intermediate, 14);
}

TEST(GraniteMoeHybrid, OptionalParts) {
  const Plan rope = BuildPlan(
      With(With(With(Config(), "position_embedding_type", "\"rope\""), "attention_bias", "true"),
           "mamba_proj_bias", "true"));
  EXPECT_EQ(AttentionOf(rope).rope->theta, 10000.0);
  EXPECT_NE(AttentionOf(rope).qkv.bias, kNoId);
  EXPECT_NE(MambaOf(rope).in_proj.bias, kNoId);
  EXPECT_NE(MambaOf(rope).out_proj.bias, kNoId);
  EXPECT_EQ(MambaOf(BuildPlan(With(Config(), "mamba_d_head", "\"auto\""))).head_dim, 8);
  EXPECT_EQ(MambaOf(BuildPlan(With(Config(), "mamba_conv_bias", "false"))).conv_bias, kNoId);

  const Plan all_mamba =
      BuildPlan(Without(Without(Config(), "layer_types"), "num_attention_heads"));
  EXPECT_EQ(MixerName(all_mamba.blocks[2].mixers[0]), "Mamba2");

  const Plan experts_only = BuildPlan(With(Config(), "shared_intermediate_size", "0"));
  ASSERT_EQ(experts_only.blocks[1].mixers.size(), 1u);
  EXPECT_EQ(MixerName(experts_only.blocks[1].mixers[0]), "MoeMlp");
  const Plan no_mlp = BuildPlan(With(Dense(), "shared_intermediate_size", "0"));
  EXPECT_EQ(no_mlp.blocks.size(), 2u);
}

TEST(GraniteMoeHybrid, UnimplementedOptionsAreRefused) {
  ExpectRefused(Config(), "normalization_function", "\"layernorm\"", "normalization_function");
  ExpectRefused(Config(), "hidden_act", "\"gelu\"", "hidden_act");
  ExpectRefused(Config(), "position_embedding_type", "\"alibi\"", "position_embedding_type");
  ExpectRefused(Config(), "layer_types", "[\"mamba\", \"conv\"]", "layer_types");
}

TEST(GraniteMoeHybrid, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "num_key_value_heads", "vocab_size", "mamba_n_heads", "mamba_d_head",
                 "mamba_expand", "mamba_n_groups", "mamba_d_state", "mamba_d_conv",
                 "mamba_chunk_size", "num_experts_per_tok"});
  ExpectAbsurdScalesRefused(Config(), {"embedding_multiplier", "attention_multiplier",
                                       "residual_multiplier", "logits_scaling", "rms_norm_eps"});
  ExpectRefused(Config(), "num_hidden_layers", "1000000000", "num_hidden_layers");
  ExpectRefused(Config(), "num_hidden_layers", "3", "layer_types");
  ExpectRefused(Config(), "num_local_experts", "-1", "num_local_experts");
  ExpectRefused(Config(), "num_local_experts", "1000000000", "num_local_experts");
  ExpectRefused(Config(), "num_experts_per_tok", "4", "num_experts_per_tok");
  ExpectRefused(Config(), "shared_intermediate_size", "-5", "shared_intermediate_size");
  ExpectRefused(Config(), "mamba_n_groups", "4", "mamba_n_groups");
  ExpectRefused(Config(), "mamba_n_heads", "5", "mamba_n_heads");
  ExpectRefused(Config(), "num_key_value_heads", "4", "num_key_value_heads");
  ExpectRefused(Config(), "time_step_limit", "[1, 0]", "time_step_limit");
}

TEST(GraniteMoeHybrid, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  for (const char* name : {"models/granitemoehybrid_dense", "models/granitemoehybrid_moe",
                           "models/granitemoehybrid_rope", "mlx/granitemoehybrid_dense_4bit",
                           "mlx/granitemoehybrid_mixed", "mlx/granitemoehybrid_moe_4bit"}) {
    SCOPED_TRACE(name);
    CheckConformanceCase(name);
  }
}

TEST(GraniteMoeHybrid, RealGeometries) {
  ADDER_SKIP_WITHOUT("geometries");
  for (const char* name : {"granite-4.0-h-350m", "granite-4.0-h-1b", "granite-4.0-h-micro",
                           "granite-4.0-h-tiny", "granite-4.0-h-small"}) {
    SCOPED_TRACE(name);
    CheckGeometry(name);
  }
}

}  // namespace
}  // namespace adder
