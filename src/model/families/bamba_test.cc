#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// All sizes differ, so that a swapped pair shows.
const char* const kConfig = R"({
  "architectures": ["BambaForCausalLM"], "model_type": "bamba", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 3, "attn_layer_indices": [1],
  "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 50, "rms_norm_eps": 1e-6,
  "mamba_n_heads": 6, "mamba_d_head": 8, "mamba_expand": 2, "mamba_n_groups": 2,
  "mamba_d_state": 5, "mamba_d_conv": 4, "mamba_chunk_size": 32, "rope_theta": 5000,
  "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Bamba, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 6u);
  const auto& mamba = std::get<Mamba2>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(mamba.heads, 6);
  EXPECT_EQ(mamba.head_dim, 8);
  EXPECT_EQ(mamba.groups, 2);
  EXPECT_EQ(mamba.gated_norm->groups, 1);
  EXPECT_FLOAT_EQ(mamba.gated_norm->eps, 1e-6f);
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(attention.kv_heads, 3);
  EXPECT_FLOAT_EQ(attention.scale, 0.5f);
  EXPECT_EQ(attention.rope->rotary_dim, 2);
  EXPECT_EQ(attention.rope->theta, 5000.0);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[5].mixers[0]).intermediate, 14);
  EXPECT_NE(plan.head.weight, plan.embedding);
}

TEST(Bamba, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "vocab_size", "mamba_n_heads", "mamba_d_state"});
  for (const char* value : {"[3]", "[-1]", "[0.5]", "[NaN]", "1", "[\"0\"]"}) {
    ExpectRefused(Config(), "attn_layer_indices", value, "attn_layer_indices");
  }
  ExpectRefused(Config(), "attn_rotary_emb", "4", "attn_rotary_emb");
}

// The reference puts 0.5 in place of what the config says, but heeds rope_parameters.
TEST(Bamba, HalfOfEachHeadTurns) {
  ExpectRefused(Config(), "partial_rotary_factor", "1.0", "partial_rotary_factor is 1; only 0.5");
  EXPECT_EQ(BuildError(With(Config(), "partial_rotary_factor", "0.5")), "");
  const Plan plan = BuildPlan(
      With(Config(), "rope_parameters", R"({"rope_theta": 5000, "partial_rotary_factor": 1.0})"));
  EXPECT_EQ(std::get<Attention>(plan.blocks[2].mixers[0]).rope->rotary_dim, 4);
}

TEST(Bamba, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/bamba");
}

TEST(Bamba, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("bamba-9b");
}

}  // namespace
}  // namespace adder
