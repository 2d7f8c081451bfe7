#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["RWKV7ForCausalLM"], "model_type": "rwkv7", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 2, "head_dim": 8, "num_heads": null,
  "norm_eps": 1e-4, "norm_first": true, "norm_bias": true, "hidden_act": "sqrelu", "attn": null,
  "a_low_rank_dim": 3, "decay_low_rank_dim": 5, "gate_low_rank_dim": 7, "v_low_rank_dim": 9,
  "vocab_size": 50, "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Rwkv7Family, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 4u);
  ASSERT_TRUE(plan.embedding_norm.has_value());
  EXPECT_TRUE(plan.embedding_norm->centered && plan.final_norm.centered);
  EXPECT_EQ(plan.vectors[plan.embedding_norm->bias].parts[0].tensor,
            "model.layers.0.pre_norm.bias");
  const auto& first = std::get<Rwkv7>(plan.blocks[0].mixers[0]);
  EXPECT_FALSE(first.value_mix.has_value());
  const auto& m = std::get<Rwkv7>(plan.blocks[2].mixers[0]);
  EXPECT_EQ(m.heads, 3);
  EXPECT_EQ(m.head_dim, 8);
  EXPECT_EQ(m.norm.groups, 3);
  EXPECT_FLOAT_EQ(m.norm.eps, 8e-4f);
  const auto rank = [&](const LowRank& low_rank) {
    return plan.matrices[low_rank.down.weight].rows;
  };
  EXPECT_EQ(rank(m.decay), 5);
  EXPECT_EQ(m.decay.activation, Activation::kTanh);
  EXPECT_EQ(rank(m.rate), 3);
  EXPECT_FALSE(m.rate.activation.has_value());
  EXPECT_EQ(rank(m.gate), 7);
  EXPECT_EQ(m.gate.activation, Activation::kSigmoid);
  EXPECT_EQ(m.gate.up.bias, kNoId);
  EXPECT_EQ(rank(*m.value_mix), 9);
  // r, w, k, v, a, g.
  EXPECT_EQ(plan.vectors[m.shift_mix].parts[1].tensor, "model.layers.1.attn.x_w");
  EXPECT_EQ(plan.vectors[m.shift_mix].parts[4].tensor, "model.layers.1.attn.x_a");
  const auto& mlp = std::get<DenseMlp>(plan.blocks[3].mixers[0]);
  EXPECT_EQ(mlp.activation, Activation::kRelu2);
  EXPECT_FALSE(mlp.gated);
  EXPECT_NE(mlp.shift_mix, kNoId);
  EXPECT_EQ(mlp.intermediate, 14);
  EXPECT_NE(plan.head.weight, plan.embedding);
}

TEST(Rwkv7Family, HeadsFollowFromTheirSizeWhateverTheirNumber) {
  const auto mixer_of = [](const Json& config) {
    return std::get<Rwkv7>(BuildPlan(config).blocks[0].mixers[0]);
  };
  // Published files of hidden_size 768 and head_dim 64 state 32 heads.
  EXPECT_EQ(mixer_of(With(Config(), "num_heads", "32")).heads, 3);
  EXPECT_EQ(mixer_of(With(Config(), "num_heads", "32")).head_dim, 8);
  const Json unsized = With(With(Config(), "head_dim", "null"), "num_heads", "4");
  EXPECT_EQ(mixer_of(unsized).heads, 4);
  EXPECT_EQ(mixer_of(unsized).head_dim, 6);
  ExpectRefused(unsized, "num_heads", "5", "num_heads (5)");
  ExpectRefused(unsized, "num_heads", "0", "num_heads");
  // A head_dim that is not null but absent is 64.
  const Json absent =
      With(With(Without(Config(), "head_dim"), "num_heads", "4"), "hidden_size", "192");
  EXPECT_EQ(mixer_of(absent).heads, 3);
  EXPECT_EQ(mixer_of(absent).head_dim, 64);
}

TEST(Rwkv7Family, ValuesMayBeStatedToBeAsWideAsTheHiddenState) {
  const std::string plan = PlanString(BuildPlan(Config()));
  for (const char* value : {"24", "[24, 24]", "null"}) {
    EXPECT_EQ(PlanString(BuildPlan(With(Config(), "value_dim", value))), plan) << value;
  }
  for (const char* value : {"48", "[48, 48]", "[24, 48]", "[24]", "[24, 24, 24]", "[]",
                            "[\"24\", 24]", "\"24\"", "{}", "true", "NaN"}) {
    ExpectRefused(Config(), "value_dim", value, "the field value_dim is");
  }
}

TEST(Rwkv7Family, TheWidthOfTheMlpFollowsFromTheRatio) {
  const auto width_of = [](const Json& config) {
    return std::get<DenseMlp>(BuildPlan(config).blocks[1].mixers[0]).intermediate;
  };
  const Json unsized = With(Config(), "intermediate_size", "null");
  EXPECT_EQ(width_of(unsized), 96);  // 4 x 24
  EXPECT_EQ(width_of(With(unsized, "hidden_ratio", "null")), 96);
  EXPECT_EQ(width_of(With(unsized, "hidden_ratio", "4.0")), 96);
  EXPECT_EQ(width_of(With(unsized, "hidden_ratio", "4.03")), 96);  // 96.72, cut to 96
  EXPECT_EQ(width_of(With(unsized, "hidden_ratio", "4.1")), 128);  // 98, up to 32 x 4
  EXPECT_EQ(width_of(With(Config(), "hidden_ratio", "4.0")), 14);  // intermediate_size counts
  for (const char* value : {"0", "-1", "0.001", "1e30", "NaN", "Infinity", "\"4\"", "[4]"}) {
    ExpectRefused(unsized, "hidden_ratio", value, "hidden_ratio");
  }
}

TEST(Rwkv7Family, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "norm_first", "false", "norm_first is false");
  ExpectRefused(Config(), "norm_bias", "false", "norm_bias is false");
  ExpectRefused(Config(), "hidden_act", "\"relu\"", "hidden_act is \"relu\"");
  ExpectRefused(Config(), "attn", "{\"layers\": [1]}", "the field attn is");
  ExpectRefused(Config(), "head_dim", "7", "hidden_size (24)");
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size", "head_dim",
                 "a_low_rank_dim", "decay_low_rank_dim", "gate_low_rank_dim", "v_low_rank_dim"});
}

TEST(Rwkv7Family, ClaimsEveryTensorOfItsCase) {
  const std::filesystem::path directory = ADDER_SOURCE_DIR "/tests/cases/rwkv7";
  const std::map<std::string, Shape> shapes = CheckpointShapes(directory);
  const Plan plan = BuildPlan(ReadJsonFile(directory / "config.json"), NamesOf(shapes));
  ExpectClaimsAll(plan, shapes);
  EXPECT_EQ(ParameterCount(plan), ReadJsonFile(directory / "case.json")["params"].get<int64_t>());
}

TEST(Rwkv7Family, TheFirstFilesHoldTheMixingVectorsInOneTensor) {
  const std::filesystem::path directory = ADDER_SOURCE_DIR "/tests/cases/rwkv7";
  std::map<std::string, Shape> shapes = CheckpointShapes(directory);
  const Json config = ReadJsonFile(directory / "config.json");
  const Plan apart = BuildPlan(config, NamesOf(shapes));
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer) + ".attn.x_";
    // The rows of the fused tensor, in their order.
    const auto& mixer = std::get<Rwkv7>(apart.blocks[static_cast<size_t>(2 * layer)].mixers[0]);
    std::string order;
    for (const VectorPart& part : apart.vectors[mixer.shift_mix].parts) {
      order += part.tensor.substr(prefix.size());
      EXPECT_EQ(shapes.erase(part.tensor), 1u) << part.tensor;
    }
    EXPECT_EQ(order, "rwkvag");
    shapes[prefix + "x"] = layer == 0 ? Shape{6, 1, 1, 64} : Shape{6, 64};
  }
  const Plan fused = BuildPlan(config, NamesOf(shapes));
  ExpectClaimsAll(fused, shapes);
  EXPECT_EQ(ParameterCount(fused), ParameterCount(apart));
}

TEST(Rwkv7Family, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("rwkv7-168m-pile");
}

}  // namespace
}  // namespace adder
