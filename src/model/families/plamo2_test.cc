#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// All sizes differ, so that a swapped pair shows.
const char* const kConfig = R"({
  "architectures": ["Plamo2ForCausalLM"], "model_type": "plamo2", "hidden_size": 24,
  "hidden_size_per_head": 4, "intermediate_size": 14, "num_hidden_layers": 5,
  "num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 50, "rms_norm_eps": 1e-5,
  "mamba_num_heads": 5, "mamba_d_state": 7, "mamba_d_conv": 3, "mamba_step": 3,
  "mamba_chunk_size": 32, "attention_window_size": 128, "max_position_embeddings": 512,
  "full_attention_idx": null, "n_expert": null, "tie_word_embeddings": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Plamo2, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 10u);
  for (int64_t layer = 0; layer < 5; ++layer) {
    const Mixer& mixer = plan.blocks[static_cast<size_t>(2 * layer)].mixers[0];
    EXPECT_EQ(std::holds_alternative<Attention>(mixer), layer % 3 == 1) << layer;
  }
  const auto& mamba = std::get<Mamba2>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(mamba.heads, 5);
  EXPECT_EQ(mamba.head_dim, 4);
  EXPECT_EQ(mamba.d_state, 7);
  EXPECT_EQ(mamba.groups, 1);
  EXPECT_EQ(mamba.d_conv, 3);
  EXPECT_EQ(mamba.conv_channels(), 20);
  ASSERT_TRUE(mamba.selection.has_value());
  EXPECT_EQ(mamba.selection->dt_rank, 64);
  EXPECT_FLOAT_EQ(mamba.selection->dt_norm->eps, 1e-5f);
  EXPECT_FALSE(mamba.gated_norm.has_value());
  // z of all heads before x of all heads.
  const std::vector<MatrixPart>& parts = plan.matrices[mamba.in_proj.weight].parts;
  ASSERT_EQ(parts.size(), 10u);
  EXPECT_EQ(parts[1].row_begin, 8);
  EXPECT_EQ(parts[5].row_begin, 4);
  EXPECT_EQ(parts[9].row_begin, 36);
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_FLOAT_EQ(attention.scale, 0.5f);
  EXPECT_EQ(attention.q_norm->groups, 6);
  EXPECT_EQ(attention.k_norm->groups, 3);
  EXPECT_FLOAT_EQ(attention.q_norm->eps, 1e-6f);
  EXPECT_EQ(attention.rope->rotary_dim, 4);
  EXPECT_EQ(plan.head.weight, plan.embedding);
}

TEST(Plamo2, NormsHaveOffsets) {
  const Plan plan = BuildPlan(Config());
  const auto offset = [&](const RmsNorm& norm) { return plan.vectors[norm.weight].offset; };
  EXPECT_FLOAT_EQ(offset(plan.blocks[0].pre_norm), 1.0f);
  EXPECT_FLOAT_EQ(offset(*plan.blocks[0].post_norm), 0.2f);
  EXPECT_FLOAT_EQ(offset(plan.blocks[1].pre_norm), 1.0f);
  EXPECT_FLOAT_EQ(offset(*plan.blocks[1].post_norm), std::pow(5.0f, -1.5f));
  EXPECT_FLOAT_EQ(offset(plan.final_norm), 1.0f);
}

// The reference keeps attention_window_size positions and adds the token's own.
TEST(Plamo2, AttentionSlidesWhereItIsNotFull) {
  const auto windows = [](const Json& config) {
    std::vector<int64_t> found;
    for (const Block& block : BuildPlan(config).blocks) {
      if (const auto* attention = std::get_if<Attention>(&block.mixers[0])) {
        found.push_back(attention->window);
      }
    }
    return found;
  };
  EXPECT_EQ(BuildPlan(Config()).max_positions, 512);
  EXPECT_EQ(windows(Config()), (std::vector<int64_t>{129, 129}));
  EXPECT_EQ(windows(With(Config(), "full_attention_idx", "[1]")), (std::vector<int64_t>{0, 129}));
  EXPECT_EQ(windows(With(Config(), "full_attention_idx", "[4, 1]")), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(windows(With(Config(), "attention_window_size", "511")), (std::vector<int64_t>{0, 0}));
  EXPECT_EQ(windows(With(Config(), "attention_window_size", "510")),
            (std::vector<int64_t>{511, 511}));
}

TEST(Plamo2, FullAttentionIsOfLayersThatAreThere) {
  for (const char* value : {"[5]", "[-1]", "[1.5]", "[NaN]", "[1, 4, 1]", "[\"1\"]", "[[1]]", "1",
                            "\"all\"", "{}", "true"}) {
    ExpectRefused(Config(), "full_attention_idx", value, "full_attention_idx");
  }
}

TEST(Plamo2, KindsOfLayers) {
  const Plan no_mamba = BuildPlan(With(Config(), "mamba_enabled", "false"));
  EXPECT_TRUE(std::holds_alternative<Attention>(no_mamba.blocks[0].mixers[0]));
  const Plan short_model =
      BuildPlan(With(With(Config(), "num_hidden_layers", "2"), "mamba_step", "6"));
  EXPECT_TRUE(std::holds_alternative<Mamba2>(short_model.blocks[0].mixers[0]));
  EXPECT_TRUE(std::holds_alternative<Attention>(short_model.blocks[2].mixers[0]));
}

TEST(Plamo2, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "hidden_size_per_head", "intermediate_size", "num_hidden_layers",
                 "num_attention_heads", "num_key_value_heads", "vocab_size", "mamba_num_heads",
                 "mamba_d_state", "mamba_d_conv", "mamba_step", "attention_window_size",
                 "max_position_embeddings"});
  ExpectRefused(Config(), "mamba_num_heads", "65536", "mamba_num_heads");
  ExpectRefused(Config(), "n_expert", "8", "n_expert");
  ExpectRefused(Config(), "num_key_value_heads", "4", "num_key_value_heads");
}

TEST(Plamo2, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/plamo2");
  CheckConformanceCase("mlx/plamo2_4bit");
}

TEST(Plamo2, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("plamo-2-1b");
}

}  // namespace
}  // namespace adder
