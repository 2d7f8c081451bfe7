#include <gtest/gtest.h>

#include <cmath>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// All sizes differ, so that a swapped pair shows.
const char* const kConfig = R"({
  "architectures": ["ZayaForCausalLM"], "model_type": "zaya", "hidden_size": 24,
  "num_hidden_layers": 3, "vocab_size": 50, "rms_norm_eps": 1e-5,
  "layer_types": ["hybrid", "hybrid_sliding", "hybrid"], "sliding_window": 7,
  "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "cca_time0": 3,
  "cca_time1": 2, "num_experts": 5, "num_experts_per_tok": 1, "moe_intermediate_size": 11,
  "router_hidden_size": 9, "tie_word_embeddings": true, "rope_parameters": {
    "hybrid": {"partial_rotary_factor": 0.5, "rope_theta": 6000.0, "rope_type": "default"},
    "hybrid_sliding": {"partial_rotary_factor": 0.25, "rope_theta": 700.0,
                       "rope_type": "default"}}})";

Json Config() { return ParseJson(kConfig, "config.json"); }

const Attention& AttentionOf(const Plan& plan, size_t block) {
  return std::get<Attention>(plan.blocks[block].mixers[0]);
}

TEST(Zaya, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 6u);
  EXPECT_NE(plan.embedding_bias, kNoId);
  EXPECT_NE(plan.embedding_factor, kNoId);
  const Attention& attention = AttentionOf(plan, 0);
  EXPECT_EQ(attention.mixing->taps, 3);
  EXPECT_EQ(attention.mixing->group_taps, 2);
  EXPECT_EQ(attention.window, 0);
  EXPECT_EQ(attention.rope->rotary_dim, 4);
  EXPECT_EQ(attention.rope->theta, 6000.0);
  EXPECT_EQ(AttentionOf(plan, 2).window, 7);
  EXPECT_EQ(AttentionOf(plan, 2).rope->rotary_dim, 2);
  EXPECT_EQ(AttentionOf(plan, 2).rope->theta, 700.0);
  EXPECT_EQ(plan.vectors[plan.blocks[0].rule.keep_bias].parts[0].tensor,
            "model.layers.0.post_attention_residual_scale.residual_bias");
  EXPECT_EQ(plan.vectors[plan.blocks[1].rule.add_scale].parts[0].tensor,
            "model.layers.0.post_mlp_residual_scale.hidden_states_scale");
}

TEST(Zaya, HeadsAreScaledToOneLengthAndKeysByTheirHead) {
  const Plan plan = BuildPlan(Config());
  const Attention& attention = AttentionOf(plan, 0);
  EXPECT_EQ(attention.q_norm->weight, kNoId);
  EXPECT_EQ(attention.k_norm->groups, 3);
  const VectorRef& temperature = plan.vectors[attention.k_norm->weight];
  EXPECT_EQ(temperature.repeat, 8);
  EXPECT_EQ(VectorSize(temperature), 24);
}

TEST(Zaya, RoutersPassOnTheirStateAndMayChooseNoExpert) {
  const Plan plan = BuildPlan(Config());
  const auto& first = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(first.router_mlp->width, 9);
  EXPECT_EQ(first.router_mlp->activation, Activation::kGelu);
  EXPECT_EQ(first.router_mlp->carried_scale, kNoId);
  EXPECT_NE(std::get<MoeMlp>(plan.blocks[3].mixers[0]).router_mlp->carried_scale, kNoId);
  EXPECT_EQ(first.routing.idle, 1);
  EXPECT_FALSE(first.routing.normalize);
  EXPECT_EQ(plan.matrices[first.router.weight].rows, 6);
  EXPECT_TRUE(plan.matrices[first.router.weight].always_float);
}

TEST(Zaya, TheLastBalancingBiasIsMinusOneWhateverTheFileSays) {
  const Plan plan = BuildPlan(Config());
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(plan.vectors[moe.routing.choice_bias].last, -1.0f);
}

TEST(Zaya, TheHeadMayHaveABias) {
  EXPECT_EQ(BuildPlan(Config()).head.bias, kNoId);
  for (const char* tied : {"true", "false"}) {
    const Json config = With(With(Config(), "lm_head_bias", "true"), "tie_word_embeddings", tied);
    const Plan plan = BuildPlan(config);
    ASSERT_NE(plan.head.bias, kNoId);
    EXPECT_EQ(plan.vectors[plan.head.bias].parts[0].tensor, "lm_head.bias");
    EXPECT_EQ(VectorSize(plan.vectors[plan.head.bias]), 50);
    for (const std::string& ignored : plan.ignored_tensors) EXPECT_NE(ignored, "lm_head.*");
  }
}

TEST(Zaya, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                 "head_dim", "num_experts", "moe_intermediate_size", "router_hidden_size",
                 "cca_time0", "cca_time1", "sliding_window"});
  ExpectRefused(Config(), "num_experts_per_tok", "2", "num_experts_per_tok");
  ExpectRefused(Config(), "layer_types", R"(["hybrid"])", "layer_types");
  ExpectRefused(Config(), "layer_types", R"(["hybrid", "full_attention", "hybrid"])",
                "layer_types");
  ExpectRefused(Config(), "attention_bias", "true", "attention_bias");
  ExpectRefused(Config(), "rope_parameters", R"({"hybrid": {"rope_type": "linear"}})", "rope_type");
  ExpectRefused(Config(), "rope_parameters", R"({"hybrid": {"type": "linear"}})", "type");
  ExpectRefused(Config(), "rope_parameters", R"({"rope_type": "yarn"})", "rope_type");
  ExpectRefused(Config(), "rope_parameters", R"({"rope_theta": 500})", "rope_theta is 500");
  ExpectRefused(Config(), "rope_scaling", R"({"type": "linear", "factor": 2})", "rope_scaling");
  ExpectRefused(Without(Config(), "rope_parameters"), "rope_theta", "500", "rope_theta is 500");
}

TEST(Zaya, RopeTypeBesideTheLayerTypes) {
  Json config = Config();
  config["rope_parameters"]["rope_type"] = "default";
  config["rope_scaling"] = false;
  EXPECT_EQ(AttentionOf(BuildPlan(config), 0).rope->theta, 6000.0);
}

TEST(Zaya, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/zaya");
}

}  // namespace
}  // namespace adder
