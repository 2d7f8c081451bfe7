#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kText = R"({
  "model_type": "qwen3_5_text", "hidden_size": 24, "intermediate_size": 14,
  "num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"],
  "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 16, "vocab_size": 50,
  "rms_norm_eps": 1e-5, "attn_output_gate": true, "linear_num_key_heads": 3,
  "linear_num_value_heads": 6, "linear_key_head_dim": 4, "linear_value_head_dim": 7,
  "rope_parameters": {"rope_type": "default", "rope_theta": 5000, "partial_rotary_factor": 0.25,
                      "mrope_interleaved": true, "mrope_section": [1, 1, 0]},
  "mtp_num_hidden_layers": 1})";

Json Text() { return ParseJson(kText, "config.json"); }
Json Config() {
  Json config = {{"architectures", {"Qwen3_5ForConditionalGeneration"}},
                 {"model_type", "qwen3_5"},
                 {"tie_word_embeddings", true},
                 {"vision_config", {{"depth", 1}}}};
  config["text_config"] = Text();
  return config;
}

TEST(Qwen35, TextModelOfAMultimodalConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 4u);
  const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(delta.d_conv, 4);
  const std::vector<MatrixPart>& parts = plan.matrices[delta.in_proj.weight].parts;
  ASSERT_EQ(parts.size(), 4u);
  const std::string prefix = "model.language_model.layers.0.linear_attn.";
  EXPECT_EQ(parts[0].module, prefix + "in_proj_qkv");
  EXPECT_EQ(parts[1].module, prefix + "in_proj_b");
  EXPECT_EQ(parts[2].module, prefix + "in_proj_a");
  EXPECT_EQ(parts[3].module, prefix + "in_proj_z");
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(attention.rope->rotary_dim, 4);
  EXPECT_EQ(attention.rope->theta, 5000.0);
  EXPECT_TRUE(attention.output_gate);
  EXPECT_EQ(plan.head.weight, plan.embedding);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[1].mixers[0]).intermediate, 14);
}

TEST(Qwen35, NamesOfTheLayouts) {
  const auto embedding = [](const Plan& plan) {
    return plan.matrices[plan.embedding].parts[0].module;
  };
  EXPECT_EQ(embedding(BuildPlan(Config())), "model.language_model.embed_tokens");
  EXPECT_EQ(embedding(BuildPlan(Config(), TensorNames::Planned(true))),
            "language_model.model.embed_tokens");
  Json untied = Config();
  untied["tie_word_embeddings"] = untied["text_config"]["tie_word_embeddings"] = false;
  const Plan mlx = BuildPlan(untied, TensorNames::Planned(true));
  EXPECT_EQ(mlx.matrices[mlx.head.weight].parts[0].module, "language_model.lm_head");
  // Text alone.
  const TensorNames plain([](const std::string&) { return false; });
  EXPECT_EQ(embedding(BuildPlan(Text(), plain)), "model.embed_tokens");
}

TEST(Qwen35, WithoutAnOutputGate) {
  Json config = Config();
  config["text_config"]["attn_output_gate"] = false;
  const Plan plan = BuildPlan(config);
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_FALSE(attention.output_gate);
  EXPECT_EQ(plan.matrices[attention.qkv.weight].rows, (6 + 2 * 3) * 16);
}

TEST(Qwen35, ErrorsNameTheField) {
  Json config = Config();
  config["text_config"]["linear_key_head_dim"] = 0;
  EXPECT_NE(BuildError(config).find("linear_key_head_dim"), std::string::npos);
  EXPECT_NE(BuildError(Without(Config(), "text_config")).find("lacks the field text_config"),
            std::string::npos);
  ExpectRefused(Text(), "layer_types", "[\"full_attention\"]", "layer_types");
  ExpectRefused(Text(), "layer_types", "[\"conv\", \"full_attention\"]", "conv");
}

TEST(Qwen35, TheModelAndItsTextAgreeOnTheHead) {
  for (const char* tied : {"true", "false"}) {
    Json config = Config();
    config["text_config"]["tie_word_embeddings"] = ParseJson(tied, "test value");
    const Plan plan = BuildPlan(With(config, "tie_word_embeddings", tied));
    EXPECT_EQ(plan.head.weight == plan.embedding, tied == std::string("true"));
    const bool other = tied == std::string("false");
    ExpectRefused(config, "tie_word_embeddings", other ? "true" : "false",
                  Concat("tie_word_embeddings is ", other ? "true" : "false"));
  }
}

TEST(Qwen35, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/qwen3_5");
  CheckConformanceCase("mlx/qwen3_5_4bit");
}

TEST(Qwen35, RealGeometries) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("qwen3.5-0.8b");
  CheckGeometry("qwen3.5-4b");
}

}  // namespace
}  // namespace adder
