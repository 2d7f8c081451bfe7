#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 4, "num_attention_heads": 6,
  "num_key_value_heads": 3, "head_dim": 10, "vocab_size": 50, "rms_norm_eps": 1e-6,
  "rope_theta": 1000000, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 9,
  "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [2],
  "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

bool IsSparse(const Plan& plan, size_t layer) {
  return std::holds_alternative<MoeMlp>(plan.blocks[2 * layer + 1].mixers[0]);
}

TEST(Qwen3Moe, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 8u);
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(moe.experts, 5);
  EXPECT_EQ(moe.top_k, 2);
  EXPECT_EQ(moe.intermediate, 9);
  EXPECT_TRUE(moe.routing.plain());
  EXPECT_EQ(plan.matrices[moe.router.weight].parts[0].module, "model.layers.0.mlp.gate");
  EXPECT_EQ(plan.matrices[moe.gate_up[3]].parts[1].module, "model.layers.0.mlp.experts.3.up_proj");
  EXPECT_EQ(plan.matrices[moe.down[3]].parts[0].module, "model.layers.0.mlp.experts.3.down_proj");
  EXPECT_TRUE(std::get<Attention>(plan.blocks[0].mixers[0]).q_norm.has_value());
  EXPECT_TRUE(IsSparse(plan, 1));
  EXPECT_FALSE(IsSparse(plan, 2));
  const Plan stepped = BuildPlan(With(Config(), "decoder_sparse_step", "2"));
  EXPECT_FALSE(IsSparse(stepped, 0));
  EXPECT_TRUE(IsSparse(stepped, 1));
}

TEST(Qwen3Moe, AWindowIsOfAllLayers) {
  const auto window = [](const Json& config, size_t layer) {
    return std::get<Attention>(BuildPlan(config).blocks[2 * layer].mixers[0]).window;
  };
  const Json on = With(With(Config(), "use_sliding_window", "true"), "sliding_window", "64");
  EXPECT_EQ(window(on, 0), 64);
  EXPECT_EQ(window(on, 3), 64);
  EXPECT_EQ(window(Without(on, "sliding_window"), 0), 4096);
  EXPECT_EQ(window(With(on, "sliding_window", "null"), 0), 0);
  EXPECT_EQ(window(With(With(on, "use_sliding_window", "false"), "max_window_layers", "4"), 0), 0);
  ExpectRefused(on, "max_window_layers", "2", "max_window_layers is 2");
  const char* const kMixed =
      R"(["full_attention", "sliding_attention", "full_attention", "full_attention"])";
  ExpectRefused(on, "layer_types", kMixed, "a \"full_attention\" layer");
  ExpectRefused(Config(), "layer_types", kMixed, "a \"sliding_attention\" layer");
}

TEST(Qwen3Moe, WeightsAreNormalisedOnlyWhenTheConfigSaysSo) {
  const Plan plan = BuildPlan(Without(Config(), "norm_topk_prob"));
  EXPECT_FALSE(std::get<MoeMlp>(plan.blocks[1].mixers[0]).routing.normalize);
}

TEST(Qwen3Moe, MlxFilesStackTheExperts) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  const MatrixPart& part = plan.matrices[moe.gate_up[3]].parts[0];
  EXPECT_EQ(part.module, "model.layers.0.mlp.switch_mlp.gate_proj");
  EXPECT_EQ(part.experts, 5);
  EXPECT_EQ(part.expert, 3);
}

TEST(Qwen3Moe, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(Config(), {"hidden_size", "num_experts", "num_experts_per_tok",
                                      "moe_intermediate_size", "decoder_sparse_step"});
  ExpectRefused(Config(), "num_experts_per_tok", "6", "num_experts_per_tok");
  for (const char* value : {"[4]", "[-1]", "[0.5]", "[NaN]", "1", "[\"0\"]"}) {
    ExpectRefused(Config(), "mlp_only_layers", value, "mlp_only_layers");
  }
}

}  // namespace
}  // namespace adder
