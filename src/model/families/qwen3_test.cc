#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 2, "num_attention_heads": 6,
  "num_key_value_heads": 3, "head_dim": 10, "vocab_size": 50, "rms_norm_eps": 1e-6,
  "rope_theta": 1000000, "rope_scaling": null, "sliding_window": null,
  "use_sliding_window": false, "tie_word_embeddings": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Qwen3, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 4u);
  const auto& attention = std::get<Attention>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(attention.head_dim, 10);
  EXPECT_FALSE(attention.qk_norm_after_rope);
  ASSERT_TRUE(attention.q_norm && attention.k_norm);
  EXPECT_EQ(plan.vectors[attention.q_norm->weight].parts[0].tensor,
            "model.layers.0.self_attn.q_norm.weight");
  EXPECT_EQ(plan.vectors[attention.k_norm->weight].parts[0].tensor,
            "model.layers.0.self_attn.k_norm.weight");
  EXPECT_EQ(plan.head.weight, plan.embedding);
  // The reference's class knows no hidden_size / heads.
  EXPECT_EQ(
      std::get<Attention>(BuildPlan(Without(Config(), "head_dim")).blocks[0].mixers[0]).head_dim,
      128);
}

TEST(Qwen3, LayersWithAWindow) {
  const auto windows = [](const Json& config) {
    const Plan plan = BuildPlan(config);
    return std::vector<int64_t>{std::get<Attention>(plan.blocks[0].mixers[0]).window,
                                std::get<Attention>(plan.blocks[2].mixers[0]).window};
  };
  using Windows = std::vector<int64_t>;
  const Json on = With(With(Config(), "use_sliding_window", "true"), "sliding_window", "64");
  EXPECT_EQ(windows(With(on, "max_window_layers", "1")), (Windows{0, 64}));
  EXPECT_EQ(windows(With(on, "max_window_layers", "0")), (Windows{64, 64}));
  EXPECT_EQ(windows(on), (Windows{0, 0}));  // from the 28th layer on
  EXPECT_EQ(windows(With(on, "layer_types", R"(["sliding_attention", "full_attention"])")),
            (Windows{64, 0}));
  EXPECT_EQ(windows(With(Without(on, "sliding_window"), "max_window_layers", "1")),
            (Windows{0, 4096}));
  const Json none = With(With(on, "sliding_window", "null"), "max_window_layers", "0");
  EXPECT_EQ(windows(none), (Windows{0, 0}));
  EXPECT_EQ(windows(With(With(on, "use_sliding_window", "false"), "max_window_layers", "0")),
            (Windows{0, 0}));
  ExpectRefused(none, "layer_types", R"(["sliding_attention", "full_attention"])",
                "sliding_window is null");
  ExpectRefused(on, "max_window_layers", "-1", "max_window_layers");
  ExpectRefused(on, "sliding_window", "0", "sliding_window");
}

TEST(Qwen3, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "layer_types", R"(["full_attention"])", "layer_types");
  ExpectRefused(Config(), "layer_types", R"(["full_attention", "sliding_attention"])",
                "sliding_attention");
  ExpectRefused(Config(), "layer_types", R"(["full_attention", "linear_attention"])",
                "layer_types");
  ExpectRefused(Config(), "hidden_act", "\"gelu\"", "hidden_act");
  ExpectAbsurdSizesRefused(Config(), {"hidden_size", "intermediate_size", "num_hidden_layers",
                                      "num_attention_heads", "vocab_size", "head_dim"});
}

TEST(Qwen3, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/qwen3");
}

}  // namespace
}  // namespace adder
