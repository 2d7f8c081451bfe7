#include "checkpoint/mlx_config.h"

#include <gtest/gtest.h>

namespace adder {
namespace {

Plan HybridPlan(bool with_mlp) {
  Plan plan;
  plan.embedding = 0;
  plan.head.weight = 0;
  Mamba2 mamba;
  mamba.heads = 6;
  mamba.head_dim = 8;
  plan.blocks.emplace_back().mixers = {mamba};
  if (with_mlp) {
    DenseMlp mlp;
    mlp.intermediate = 96;
    plan.blocks.emplace_back().mixers = {mlp};
  }
  return plan;
}

TEST(CompleteMlxConfig, StatesWhatMlxLmAsksFor) {
  Json config = ParseJson(R"({"layer_types": ["linear_attention", "full_attention", "mamba"],
      "rope_parameters": {"rope_theta": 5000, "rope_type": "default"}, "vocab_size": 9})",
                          "test");
  CompleteMlxConfig(HybridPlan(true), config);
  EXPECT_EQ(config["layer_types"], Json({"mamba", "attention", "mamba"}));
  EXPECT_EQ(config["intermediate_size"], 96);
  EXPECT_EQ(config["rope_theta"], 5000);
  EXPECT_EQ(config["tie_word_embeddings"], true);
  EXPECT_EQ(config["vocab_size"], 9);
  Json mamba = Json::object();
  CompleteMlxConfig(HybridPlan(false), mamba);
  EXPECT_EQ(mamba["intermediate_size"], 48);
}

TEST(CompleteMlxConfig, SpeaksTheDialectOfMlxLm) {
  Json hunyuan = ParseJson(R"({"model_type": "hunyuan_v1_moe", "use_cla": false})", "test");
  CompleteMlxConfig(HybridPlan(true), hunyuan);
  EXPECT_EQ(hunyuan["model_type"], "hunyuan");
  EXPECT_EQ(hunyuan["cla_share_factor"], 2);
  // The factor is inside of the keys then.
  Json falcon = ParseJson(R"({"model_type": "falcon_h1", "key_multiplier": 0.25})", "test");
  CompleteMlxConfig(HybridPlan(true), falcon);
  EXPECT_EQ(falcon["key_multiplier"], 1.0);
  EXPECT_EQ(falcon["model_type"], "falcon_h1");
  Json gemma = ParseJson(R"({"text_config": {"vocab_size": 12}})", "test");
  CompleteMlxConfig(HybridPlan(true), gemma);
  EXPECT_EQ(gemma["vocab_size"], 12);
  Json stated = ParseJson(R"({"text_config": {"vocab_size": 12}, "vocab_size": 11})", "test");
  CompleteMlxConfig(HybridPlan(true), stated);
  EXPECT_EQ(stated["vocab_size"], 11);
}

TEST(CompleteMlxConfig, KeepsWhatIsStated) {
  Json config = ParseJson(R"({"intermediate_size": 7, "rope_theta": 3,
      "rope_parameters": {"rope_theta": 5}, "tie_word_embeddings": true,
      "layer_types": ["full_attention"]})",
                          "test");
  Plan plan;  // no Mamba layers, head and embedding apart
  plan.embedding = 0;
  plan.head.weight = 1;
  CompleteMlxConfig(plan, config);
  EXPECT_EQ(config["intermediate_size"], 7);
  EXPECT_EQ(config["rope_theta"], 3);
  EXPECT_EQ(config["layer_types"], Json({"full_attention"}));
  EXPECT_EQ(config["tie_word_embeddings"], false);
}

}  // namespace
}  // namespace adder
