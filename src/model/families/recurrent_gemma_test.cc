#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["RecurrentGemmaForCausalLM"], "model_type": "recurrent_gemma",
  "_block_types": ["recurrent", "attention"], "hidden_size": 24, "intermediate_size": 28,
  "num_hidden_layers": 3, "num_attention_heads": 3, "num_key_value_heads": 1, "head_dim": 8,
  "vocab_size": 50, "lru_width": 30, "conv1d_width": 3, "attention_window_size": 17,
  "partial_rotary_factor": 0.5, "rope_theta": 5000, "rms_norm_eps": 1e-5,
  "hidden_activation": "gelu_pytorch_tanh", "logits_soft_cap": 20.0})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(RecurrentGemma, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 6u);
  EXPECT_EQ(plan.head.weight, plan.embedding);
  EXPECT_FLOAT_EQ(plan.logits_cap, 20);
  const auto& lru = std::get<RgLru>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(lru.width, 30);
  EXPECT_EQ(lru.heads, 3);
  EXPECT_EQ(lru.d_conv, 3);
  EXPECT_FLOAT_EQ(lru.decay_scale, 8);
  EXPECT_EQ(lru.gate_activation, Activation::kGeluTanh);
  EXPECT_EQ(plan.matrices[lru.in_proj.weight].parts[1].module,
            "model.layers.0.temporal_block.linear_y");
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(attention.window, 17);
  EXPECT_EQ(attention.rope->rotary_dim, 4);
  EXPECT_EQ(attention.qkv.bias, kNoId);
  EXPECT_NE(attention.output.bias, kNoId);
  EXPECT_EQ(MixerName(plan.blocks[4].mixers[0]), "RgLru");
  const auto& mlp = std::get<DenseMlp>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(mlp.intermediate, 14);
  EXPECT_EQ(mlp.activation, Activation::kGeluTanh);
  for (VectorId id :
       {plan.final_norm.weight, plan.blocks[0].pre_norm.weight, plan.blocks[3].pre_norm.weight}) {
    EXPECT_EQ(plan.vectors[id].transform, VectorTransform::kPlusOne);
  }
}

TEST(RecurrentGemma, TheEmbeddingScaleIsRoundedToBf16) {
  // The square root of 24 is 4.899; bf16 near it has steps of 1 / 32.
  EXPECT_FLOAT_EQ(BuildPlan(Config()).embedding_scale, 4.90625f);
  EXPECT_FLOAT_EQ(
      BuildPlan(With(Config(), "embeddings_scale_by_sqrt_dim", "false")).embedding_scale, 1);
}

TEST(RecurrentGemma, TheWindowMayBeCalledSlidingWindow) {
  const auto window = [](const Json& config) {
    return std::get<Attention>(BuildPlan(config).blocks[2].mixers[0]).window;
  };
  const Json unnamed = Without(Config(), "attention_window_size");
  EXPECT_EQ(window(With(unnamed, "sliding_window", "19")), 19);
  EXPECT_EQ(window(unnamed), 2048);
  EXPECT_EQ(window(With(Config(), "sliding_window", "17")), 17);
  ExpectRefused(Config(), "sliding_window", "19",
                "sliding_window is 19, but attention_window_size is 17");
}

TEST(RecurrentGemma, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "_block_types", "[\"recurrent\", \"conv\"]", "\"conv\"");
  ExpectRefused(Config(), "_block_types", "[]", "_block_types / block_types is empty");
  ExpectRefused(Config(), "block_types", "[\"attention\"]", "_block_types and block_types differ");
  ExpectRefused(Config(), "intermediate_size", "27", "intermediate_size (27)");
  ExpectRefused(Config(), "lru_width", "31", "lru_width (31)");
  ExpectRefused(Config(), "logits_soft_cap", "-1", "logits_soft_cap");
  ExpectRefused(Config(), "hidden_activation", "\"tanh\"", "hidden_activation");
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "vocab_size", "lru_width", "conv1d_width", "attention_window_size"});
}

TEST(RecurrentGemma, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/recurrent_gemma");
}

TEST(RecurrentGemma, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("recurrentgemma-2b");
}

}  // namespace
}  // namespace adder
