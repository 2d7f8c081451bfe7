#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["GraniteForCausalLM"], "model_type": "granite", "hidden_size": 24,
  "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 6,
  "num_key_value_heads": 3, "vocab_size": 50, "rms_norm_eps": 1e-5, "rope_theta": 5000,
  "embedding_multiplier": 12, "attention_multiplier": 0.0625, "residual_multiplier": 0.22,
  "logits_scaling": 8, "tie_word_embeddings": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Granite, PlanCarriesTheMultipliers) {
  const Plan plan = BuildPlan(Config());
  EXPECT_EQ(plan.family, "granite");
  EXPECT_EQ(plan.embedding_scale, 12.0f);
  EXPECT_EQ(plan.logits_scale, 0.125f);
  ASSERT_EQ(plan.blocks.size(), 4u);
  for (const Block& block : plan.blocks) EXPECT_EQ(block.residual_scale, 0.22f);
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(attention.scale, 0.0625f);
  EXPECT_EQ(attention.head_dim, 4);
  EXPECT_EQ(attention.rope->theta, 5000.0);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[3].mixers[0]).intermediate, 40);
  EXPECT_EQ(plan.head.weight, plan.embedding);
}

TEST(Granite, MissingMultipliersAreOne) {
  Json config = Config();
  for (const char* key :
       {"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"}) {
    config.erase(key);
  }
  const Plan plan = BuildPlan(config);
  EXPECT_EQ(plan.embedding_scale, 1.0f);
  EXPECT_EQ(plan.logits_scale, 1.0f);
  EXPECT_EQ(plan.blocks[0].residual_scale, 1.0f);
  EXPECT_EQ(std::get<Attention>(plan.blocks[0].mixers[0]).scale, 1.0f);
}

TEST(Granite, WindowsAreRefused) {
  ExpectRefused(With(Config(), "sliding_window", "64"), "layer_types",
                R"(["full_attention", "sliding_attention"])", "\"sliding_attention\" layers");
  ExpectRefused(Config(), "sliding_window", "64", "sliding_window is 64");
  ExpectRefused(Config(), "use_sliding_window", "true", "use_sliding_window is true");
  EXPECT_EQ(BuildError(With(Config(), "layer_types", R"(["full_attention", "full_attention"])")),
            "");
}

TEST(Granite, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(Config(), {"hidden_size", "intermediate_size", "num_hidden_layers",
                                      "num_attention_heads", "num_key_value_heads", "vocab_size"});
  ExpectAbsurdScalesRefused(Config(), {"embedding_multiplier", "attention_multiplier",
                                       "residual_multiplier", "logits_scaling", "rms_norm_eps"});
  ExpectRefused(Config(), "logits_scaling", "0", "logits_scaling");
  ExpectRefused(Config(), "hidden_act", "\"relu\"", "hidden_act");
}

TEST(Granite, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  const Plan plan = CheckConformanceCase("models/granite");
  EXPECT_EQ(plan.embedding_scale, 5.0f);
  EXPECT_EQ(plan.logits_scale, 0.4f);
}

}  // namespace
}  // namespace adder
