#include <gtest/gtest.h>

#include <cmath>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["HunYuanDenseV1ForCausalLM"], "model_type": "hunyuan_v1_dense",
  "hidden_size": 24, "intermediate_size": 14, "num_hidden_layers": 2, "num_attention_heads": 6,
  "num_key_value_heads": 3, "head_dim": 10, "attention_head_dim": 10, "vocab_size": 50,
  "rms_norm_eps": 1e-5, "rope_theta": 10000, "use_qk_norm": true, "use_cla": false,
  "rope_scaling": {"type": "dynamic", "alpha": 1000, "factor": 1.0}, "tie_word_embeddings": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }
const Attention& AttentionOf(const Plan& plan) {
  return std::get<Attention>(plan.blocks[0].mixers[0]);
}

TEST(HunyuanDense, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  const Attention& attention = AttentionOf(plan);
  EXPECT_EQ(attention.head_dim, 10);
  EXPECT_TRUE(attention.qk_norm_after_rope);
  EXPECT_EQ(plan.vectors[attention.q_norm->weight].parts[0].tensor,
            "model.layers.0.self_attn.query_layernorm.weight");
  EXPECT_EQ(AttentionOf(BuildPlan(Without(Config(), "head_dim"))).head_dim, 10);
  EXPECT_FALSE(AttentionOf(BuildPlan(With(Config(), "use_qk_norm", "false"))).q_norm.has_value());
}

TEST(HunyuanDense, AlphaStretchesTheBaseOfTheRotation) {
  const Plan plan = BuildPlan(Config());
  const Rope& rope = *AttentionOf(plan).rope;
  const double base = 10000 * std::pow(1000.0, 10.0 / 8.0);
  EXPECT_NEAR(rope.theta, base, 1e-9 * base);
  EXPECT_NEAR(rope.inverse_frequencies[1], std::pow(base, -0.2), 1e-7);
}

TEST(HunyuanDense, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "use_cla", "true", "use_cla is true");
  ExpectRefused(Config(), "mlp_bias", "true", "mlp_bias is true");
  ExpectRefused(Config(), "attention_head_dim", "12", "attention_head_dim is 12");
  ExpectRefused(Config(), "rope_scaling", R"({"type": "dynamic"})", "factor");
  // The norms of q and k come after the rotation, and would undo what it multiplies by.
  ExpectRefused(Config(), "rope_scaling",
                R"({"type": "yarn", "factor": 2, "original_max_position_embeddings": 64})",
                "yarn) multiplies by");
  ExpectRefused(Config(), "rope_scaling", R"({"type": "dynamic", "alpha": -1})", "alpha");
  ExpectRefused(Config(), "rope_scaling", R"({"alpha": 1000})", "alpha, but no rope_type");
  ExpectAbsurdSizesRefused(Config(), {"hidden_size", "intermediate_size", "num_hidden_layers",
                                      "num_attention_heads", "vocab_size", "head_dim"});
}

TEST(HunyuanDense, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/hunyuan_v1_dense");
}

TEST(HunyuanDense, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  EXPECT_NEAR(AttentionOf(CheckGeometry("hunyuan-1.8b")).rope->theta, 11158840, 1);
}

}  // namespace
}  // namespace adder
