#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// Attention in layer 2, experts in layers 1 and 3.
const char* const kConfig = R"({
  "architectures": ["JambaForCausalLM"], "model_type": "jamba", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 4, "attn_layer_period": 5, "attn_layer_offset": 2,
  "expert_layer_period": 2, "expert_layer_offset": 1, "num_experts": 3, "num_experts_per_tok": 2,
  "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 50, "rms_norm_eps": 1e-4,
  "mamba_d_state": 5, "mamba_d_conv": 3, "mamba_expand": 2, "mamba_dt_rank": 7,
  "sliding_window": null, "tie_word_embeddings": false, "hidden_act": "silu"})";

Json Config() { return ParseJson(kConfig, "config.json"); }
const Mixer& MixerOf(const Plan& plan, int64_t layer, bool feed_forward) {
  return plan.blocks[static_cast<size_t>(2 * layer + (feed_forward ? 1 : 0))].mixers[0];
}

TEST(Jamba, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 8u);
  for (int64_t layer = 0; layer < 4; ++layer) {
    EXPECT_EQ(MixerName(MixerOf(plan, layer, false)), layer == 2 ? "Attention" : "Mamba1");
    EXPECT_EQ(MixerName(MixerOf(plan, layer, true)), layer % 2 == 1 ? "MoeMlp" : "DenseMlp");
  }
  const auto& mamba = std::get<Mamba1>(MixerOf(plan, 0, false));
  EXPECT_EQ(mamba.inner, 48);
  EXPECT_EQ(mamba.d_state, 5);
  EXPECT_EQ(mamba.d_conv, 3);
  EXPECT_EQ(mamba.dt_rank, 7);
  EXPECT_FLOAT_EQ(mamba.dt_norm->eps, 1e-4f);
  EXPECT_EQ(plan.vectors[mamba.b_norm->weight].parts[0].tensor,
            "model.layers.0.mamba.b_layernorm.weight");
  EXPECT_EQ(plan.vectors[mamba.c_norm->weight].parts[0].tensor,
            "model.layers.0.mamba.c_layernorm.weight");
  const auto& attention = std::get<Attention>(MixerOf(plan, 2, false));
  EXPECT_EQ(attention.kv_heads, 3);
  EXPECT_FLOAT_EQ(attention.scale, 0.5f);
  EXPECT_FALSE(attention.rope.has_value());
  const auto& moe = std::get<MoeMlp>(MixerOf(plan, 3, true));
  EXPECT_EQ(moe.experts, 3);
  EXPECT_EQ(moe.top_k, 2);
  EXPECT_EQ(moe.intermediate, 14);
  // Weights of the chosen are those among all experts.
  EXPECT_FALSE(moe.routing.normalize);
  EXPECT_EQ(moe.routing.scores, RouterScores::kSoftmax);
  EXPECT_EQ(plan.matrices[moe.gate_up[2]].parts[1].module,
            "model.layers.3.feed_forward.experts.2.up_proj");
}

TEST(Jamba, MlxFilesStackTheExperts) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  const auto& moe = std::get<MoeMlp>(MixerOf(plan, 1, true));
  const MatrixPart& part = plan.matrices[moe.down[2]].parts[0];
  EXPECT_EQ(part.module, "model.layers.1.feed_forward.switch_mlp.down_proj");
  EXPECT_EQ(part.experts, 3);
  EXPECT_EQ(part.expert, 2);
  EXPECT_EQ(ParameterCount(plan), ParameterCount(BuildPlan(Config())));
}

TEST(Jamba, AListOfLayersHasToFollowThePeriod) {
  const std::string plan = PlanString(BuildPlan(Config()));
  for (const char* field : {"layers_block_type", "layer_types"}) {
    for (const char* names :
         {R"(["mamba", "mamba", "attention", "mamba"])",
          R"(["linear_attention", "linear_attention", "full_attention", "linear_attention"])"}) {
      EXPECT_EQ(PlanString(BuildPlan(With(Config(), field, names))), plan) << field << names;
    }
    ExpectRefused(
        Config(), field, R"(["mamba", "attention", "mamba", "mamba"])",
        Concat("attn_layer_period / attn_layer_offset and ", field, " describe different layers"));
    ExpectRefused(Config(), field, R"(["mamba", "mamba", "attention"])", field);
  }
}

TEST(Jamba, TheNumberOfExpertsHasAnotherName) {
  const Json renamed = With(Without(Config(), "num_experts"), "num_local_experts", "5");
  const Plan plan = BuildPlan(renamed);
  EXPECT_EQ(std::get<MoeMlp>(MixerOf(plan, 1, true)).experts, 5);
  ExpectRefused(Config(), "num_local_experts", "7", "they should say the same");
  ExpectRefused(renamed, "num_local_experts", "0", "num_local_experts");
}

TEST(Jamba, OneExpertIsAnMlp) {
  const Plan plan = BuildPlan(With(Config(), "num_experts", "1"));
  EXPECT_EQ(MixerName(MixerOf(plan, 1, true)), "DenseMlp");
  EXPECT_EQ(
      std::get<Mamba1>(MixerOf(BuildPlan(With(Config(), "mamba_dt_rank", "\"auto\"")), 0, false))
          .dt_rank,
      2);
}

TEST(Jamba, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "sliding_window", "64", "sliding_window is 64");
  ExpectRefused(Config(), "hidden_act", "\"gelu\"", "hidden_act");
  ExpectRefused(Config(), "attn_layer_offset", "5", "attn_layer_offset (5)");
  ExpectRefused(Config(), "expert_layer_offset", "2", "expert_layer_offset (2)");
  ExpectRefused(Config(), "attn_layer_offset", "-1", "attn_layer_offset");
  ExpectRefused(Config(), "num_experts_per_tok", "4", "num_experts_per_tok");
  ExpectRefused(Config(), "num_experts", "1000000", "num_experts");
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "vocab_size", "attn_layer_period", "expert_layer_period", "num_experts",
                 "num_experts_per_tok", "mamba_d_state", "mamba_d_conv", "mamba_expand"});
}

TEST(Jamba, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/jamba");
}

TEST(Jamba, RealGeometries) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("jamba-v0.1");
  const Plan tied = CheckGeometry("jamba-reasoning-3b");
  EXPECT_EQ(tied.head.weight, tied.embedding);
}

}  // namespace
}  // namespace adder
