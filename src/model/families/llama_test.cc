#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 24,
  "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
  "num_key_value_heads": 3, "vocab_size": 50, "rms_norm_eps": 1e-5, "rope_theta": 5000,
  "max_position_embeddings": 512, "hidden_act": "silu", "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

const Attention& AttentionOf(const Plan& plan) {
  return std::get<Attention>(plan.blocks[0].mixers[0]);
}
const DenseMlp& MlpOf(const Plan& plan) { return std::get<DenseMlp>(plan.blocks[1].mixers[0]); }

TEST(Llama, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  EXPECT_EQ(plan.family, "llama");
  EXPECT_EQ(plan.vocab, 50);
  EXPECT_EQ(plan.hidden, 24);
  EXPECT_EQ(plan.max_positions, 512);
  ASSERT_EQ(plan.blocks.size(), 4u);
  EXPECT_EQ(plan.blocks[3].layer, 1);
  EXPECT_FLOAT_EQ(plan.blocks[0].pre_norm.eps, 1e-5f);
  const Attention& attention = AttentionOf(plan);
  EXPECT_EQ(attention.heads, 6);
  EXPECT_EQ(attention.kv_heads, 3);
  EXPECT_EQ(attention.head_dim, 4);
  EXPECT_FLOAT_EQ(attention.scale, 0.5f);
  EXPECT_EQ(attention.rope->theta, 5000.0);
  EXPECT_EQ(attention.qkv.bias, kNoId);
  EXPECT_EQ(MlpOf(plan).intermediate, 40);
  EXPECT_EQ(plan.matrices[MlpOf(plan).gate_up.weight].parts[1].module,
            "model.layers.0.mlp.up_proj");
  EXPECT_NE(plan.head.weight, plan.embedding);
  EXPECT_EQ(plan.embedding_scale, 1.0f);
  EXPECT_EQ(plan.logits_scale, 1.0f);
}

TEST(Llama, OptionalParts) {
  EXPECT_EQ(BuildPlan(With(Config(), "tie_word_embeddings", "true")).head.weight, 0);
  const Plan biased = BuildPlan(With(With(Config(), "attention_bias", "true"), "mlp_bias", "true"));
  EXPECT_NE(AttentionOf(biased).output.bias, kNoId);
  EXPECT_NE(MlpOf(biased).gate_up.bias, kNoId);
  EXPECT_NE(MlpOf(biased).down.bias, kNoId);
  EXPECT_EQ(AttentionOf(BuildPlan(With(Config(), "head_dim", "10"))).head_dim, 10);
  EXPECT_EQ(AttentionOf(BuildPlan(With(Config(), "head_dim", "null"))).head_dim, 4);
  EXPECT_EQ(AttentionOf(BuildPlan(Without(Config(), "num_key_value_heads"))).kv_heads, 6);
}

TEST(Llama, WithoutTheFieldTheTensorsDecideOnTying) {
  const Json config = Without(Config(), "tie_word_embeddings");
  const auto with_head = [](const std::string& name) { return name == "lm_head.weight"; };
  EXPECT_NE(BuildPlan(config, TensorNames(with_head)).head.weight, 0);
  EXPECT_EQ(BuildPlan(config).head.weight, 0);
}

TEST(Llama, UnimplementedOptionsAreRefused) {
  ExpectRefused(Config(), "hidden_act", "\"gelu\"", "hidden_act is \"gelu\"");
  ExpectRefused(Config(), "pretraining_tp", "2", "pretraining_tp is 2");
  ExpectRefused(Config(), "rope_scaling", R"({"rope_type": "ntk", "factor": 2})", "\"ntk\"");
}

TEST(Llama, ScalingsOfTheRotation) {
  const Plan plan = BuildPlan(With(Config(), "rope_scaling", R"({"rope_type": "yarn", "factor": 4,
      "original_max_position_embeddings": 256})"));
  EXPECT_EQ(AttentionOf(plan).rope->scaling, "yarn");
  EXPECT_FLOAT_EQ(AttentionOf(plan).rope->factor, 1.138629436111989f);
  EXPECT_EQ(plan.max_positions, 1024);
}

TEST(Llama, LayersWithAWindow) {
  const Json config = With(Config(), "layer_types", R"(["sliding_attention", "full_attention"])");
  const Plan plan = BuildPlan(With(config, "sliding_window", "64"));
  EXPECT_EQ(std::get<Attention>(plan.blocks[0].mixers[0]).window, 64);
  EXPECT_EQ(std::get<Attention>(plan.blocks[2].mixers[0]).window, 0);
  EXPECT_NE(BuildError(config).find("sliding_window"), std::string::npos);
  ExpectRefused(With(config, "sliding_window", "64"), "use_sliding_window", "false",
                "use_sliding_window is false");
  ExpectRefused(Config(), "layer_types", R"(["full_attention"])", "layer_types has 1 entries");
  ExpectRefused(Config(), "layer_types", R"(["full_attention", "chunked_attention"])",
                "\"chunked_attention\"");
  // A window without layers: one that is off or never filled is none.
  ExpectRefused(Config(), "sliding_window", "64", "sliding_window is 64");
  ExpectRefused(Config(), "use_sliding_window", "true", "use_sliding_window is true");
  for (const Json& full :
       {With(Config(), "sliding_window", "512"),
        With(With(Config(), "sliding_window", "64"), "use_sliding_window", "false"),
        With(With(Config(), "sliding_window", "64"), "layer_types",
             R"(["full_attention", "full_attention"])")}) {
    EXPECT_EQ(AttentionOf(BuildPlan(full)).window, 0);
  }
}

// transformers ignores the field, and mlx-lm does.
TEST(Llama, APartOfTheHeadsIsRefused) {
  ExpectRefused(Config(), "partial_rotary_factor", "0.5",
                "partial_rotary_factor is 0.5; only 1 is implemented");
  ExpectRefused(Config(), "rope_parameters",
                R"({"rope_theta": 5000, "partial_rotary_factor": 0.5})",
                "partial_rotary_factor is 0.5; only 1 is implemented");
  EXPECT_EQ(AttentionOf(BuildPlan(With(Config(), "partial_rotary_factor", "1.0"))).rope->rotary_dim,
            4);
}

TEST(Llama, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "num_key_value_heads", "vocab_size", "head_dim", "max_position_embeddings"});
  ExpectRefused(Config(), "num_hidden_layers", "1000000000", "num_hidden_layers");
  ExpectRefused(Config(), "num_key_value_heads", "4", "num_key_value_heads");
  ExpectRefused(Config(), "num_attention_heads", "9", "num_attention_heads");
  ExpectRefused(Config(), "rms_norm_eps", "NaN", "rms_norm_eps");
  ExpectRefused(Config(), "rms_norm_eps", "-1", "rms_norm_eps");
  ExpectRefused(Config(), "rope_theta", "Infinity", "rope_theta");
  for (const char* key : {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"}) {
    const std::string error = BuildError(Without(Config(), key));
    EXPECT_NE(error.find(key), std::string::npos) << error;
  }
}

TEST(Llama, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  const Plan plan = CheckConformanceCase("models/llama");
  EXPECT_EQ(AttentionOf(plan).rope->scaling, "llama3");
}

TEST(Llama, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("llama-3.2-1b");
}

}  // namespace
}  // namespace adder
