#include "model/family_fields.h"

#include <gtest/gtest.h>
#include <limits>

#include <cmath>

#include "core/error.h"

namespace adder {
namespace {

// Calls `read` with the parsed config and gives the error's message, or "" without an error.
template <class Read>
std::string ErrorOf(const std::string& text, Read read) {
  const Json config = ParseJson(text, "config.json");
  try {
    read(JsonObject(config, "config.json"));
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

template <class Read>
auto ReadFrom(const std::string& text, Read read) {
  const Json config = ParseJson(text, "config.json");
  return read(JsonObject(config, "config.json"));
}

void ExpectNames(const std::string& error, const std::string& words) {
  EXPECT_NE(error.find(words), std::string::npos) << "\"" << words << "\" is not in: " << error;
}

TEST(FamilyFields, TimeStepLimit) {
  const auto read = [](const JsonObject& config) {
    return ReadTimeStepLimit(config, {"time_step_limit"});
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const char* text :
       {R"({})", R"({"time_step_limit": null})", R"({"time_step_limit": [0.0, Infinity]})",
        R"({"time_step_limit": [0, {"__float__": "Infinity"}]})",
        R"({"time_step_limit": [0, 1e300]})"}) {
    EXPECT_EQ(ReadFrom(text, read), std::make_pair(0.0f, kInfinity)) << text;
  }
  EXPECT_EQ(ReadFrom(R"({"time_step_limit": [0.03, 0.3]})", read), std::make_pair(0.03f, 0.3f));
  for (const char* value : {"[]", "[0]", "[0, 1, 2]", "[1, 0]", "[-1, 1]", "[NaN, 1]", "[0, NaN]",
                            "[Infinity, Infinity]", "0.1", "\"x\"", "[\"0\", 1]"}) {
    ExpectNames(ErrorOf(Concat(R"({"time_step_limit": )", value, "}"), read), "time_step_limit");
  }
}

TEST(FamilyFields, LayerTypesInBothVocabularies) {
  const auto read = [](const JsonObject& config) {
    return ReadLayerTypes(config, {"layer_types"}, 3, LayerKind::kMamba);
  };
  using Kinds = std::vector<LayerKind>;
  const Kinds mixed = {LayerKind::kMamba, LayerKind::kAttention, LayerKind::kMamba};
  EXPECT_EQ(ReadFrom(R"({"layer_types": ["mamba", "attention", "mamba"]})", read), mixed);
  EXPECT_EQ(
      ReadFrom(R"({"layer_types": ["linear_attention", "full_attention", "linear_attention"]})",
               read),
      mixed);
  EXPECT_EQ(ReadFrom(R"({})", read), Kinds(3, LayerKind::kMamba));
  ExpectNames(ErrorOf(R"({"layer_types": ["mamba"]})", read), "layer_types has 1 entries");
  ExpectNames(ErrorOf(R"({"layer_types": ["mamba", "conv", "mamba"]})", read), "\"conv\"");
  ExpectNames(ErrorOf(R"({"layer_types": 3})", read), "layer_types");
}

TEST(FamilyFields, LayerTypesUnderBothNamesHaveToAgree) {
  using Kinds = std::vector<LayerKind>;
  const auto read = [](const JsonObject& config) {
    return ReadAgreedLayerTypes(config, 2, AgreedLayers<Kinds>(config));
  };
  const Kinds mixed = {LayerKind::kMamba, LayerKind::kAttention};
  EXPECT_EQ(ReadFrom(R"({})", read), Kinds(2, LayerKind::kMamba));
  EXPECT_EQ(ReadFrom(R"({"layer_types": ["mamba", "attention"]})", read), mixed);
  EXPECT_EQ(ReadFrom(R"({"layers_block_type": ["linear_attention", "full_attention"]})", read),
            mixed);
  EXPECT_EQ(ReadFrom(R"({"layers_block_type": ["linear_attention", "full_attention"],
                         "layer_types": ["mamba", "attention"]})",
                     read),
            mixed);
  ExpectNames(ErrorOf(R"({"layers_block_type": ["mamba", "mamba"],
                          "layer_types": ["mamba", "attention"]})",
                      read),
              "the fields layers_block_type and layer_types describe different layers");
  const auto beside = [](const JsonObject& config) {
    AgreedLayers<Kinds> agreed(config);
    agreed.Add("attn_layer_indices", {LayerKind::kMamba, LayerKind::kAttention});
    return ReadAgreedLayerTypes(config, 2, agreed);
  };
  EXPECT_EQ(ReadFrom(R"({})", beside), mixed);
  ExpectNames(ErrorOf(R"({"layer_types": ["attention", "mamba"]})", beside),
              "the fields attn_layer_indices and layer_types describe different layers");
}

TEST(FamilyFields, Scales) {
  const auto scale = [](const JsonObject& config) { return ReadScale(config, {"m"}, 1.0); };
  const auto inverse = [](const JsonObject& config) {
    return ReadInverseScale(config, {"m"}, 1.0);
  };
  EXPECT_EQ(ReadFrom(R"({"m": 12})", scale), 12.0f);
  EXPECT_EQ(ReadFrom(R"({"m": 0})", scale), 0.0f);
  EXPECT_EQ(ReadFrom(R"({"m": null})", scale), 1.0f);
  EXPECT_EQ(ReadFrom(R"({"m": 8})", inverse), 0.125f);
  for (const char* value : {"NaN", "Infinity", "1e39", "\"2\""}) {
    ExpectNames(ErrorOf(Concat(R"({"m": )", value, "}"), scale), "field m");
    ExpectNames(ErrorOf(Concat(R"({"m": )", value, "}"), inverse), "field m");
  }
  ExpectNames(ErrorOf(R"({"m": 0})", inverse), "not zero");
  ExpectNames(ErrorOf(R"({"m": 1e-60})", inverse), "field m");
}

TEST(FamilyFields, ActivationsOtherThanSiluAreRefused) {
  const auto read = [](const JsonObject& config) { return ReadActivation(config, {"hidden_act"}); };
  EXPECT_EQ(ReadFrom(R"({"hidden_act": "swish"})", read), Activation::kSilu);
  EXPECT_EQ(ReadFrom(R"({})", read), Activation::kSilu);
  ExpectNames(ErrorOf(R"({"hidden_act": "gelu"})", read), "hidden_act is \"gelu\"");
}

TEST(FamilyFields, RequiredValues) {
  const auto check = [](const JsonObject& config) {
    RequireBool(config, "flag", true);
    RequireInt(config, "count", 1);
    RequireString(config, "name", "rmsnorm");
  };
  EXPECT_EQ(ErrorOf(R"({})", check), "");
  EXPECT_EQ(ErrorOf(R"({"flag": true, "count": 1, "name": "rmsnorm"})", check), "");
  ExpectNames(ErrorOf(R"({"flag": false})", check), "flag is false");
  ExpectNames(ErrorOf(R"({"count": 2})", check), "count is 2");
  ExpectNames(ErrorOf(R"({"name": "layernorm"})", check), "name is \"layernorm\"");
}

TEST(FamilyFields, AttentionSizes) {
  const auto read = [](const JsonObject& config) { return ReadAttentionSizes(config, 96); };
  const Attention plain = ReadFrom(R"({"num_attention_heads": 6})", read);
  EXPECT_EQ(plain.kv_heads, 6);
  EXPECT_EQ(plain.head_dim, 16);
  const Attention grouped =
      ReadFrom(R"({"num_attention_heads": 7, "num_key_value_heads": 1, "head_dim": 10})", read);
  EXPECT_EQ(grouped.heads, 7);
  EXPECT_EQ(grouped.kv_heads, 1);
  EXPECT_EQ(grouped.head_dim, 10);
  ExpectNames(ErrorOf(R"({"num_attention_heads": 6, "num_key_value_heads": 4})", read),
              "num_attention_heads (6) should be a multiple of num_key_value_heads (4)");
  ExpectNames(ErrorOf(R"({"num_attention_heads": 7})", read), "hidden_size (96)");
  ExpectNames(ErrorOf(R"({"num_attention_heads": 0})", read), "num_attention_heads");
  ExpectNames(ErrorOf(R"({"num_attention_heads": 192})", read), "hidden_size");
}

TEST(FamilyFields, StackedModulesKeepOrderAndBiases) {
  Plan plan;
  plan.hidden = 5;
  Attention sizes;
  sizes.heads = 4;
  sizes.kv_heads = 2;
  sizes.head_dim = 3;
  const Attention attention = AddAttention(plan, "model.layers.2.self_attn", sizes, true);
  const MatrixRef& qkv = plan.matrices[attention.qkv.weight];
  EXPECT_EQ(qkv.label, "layers.2.self_attn.qkv");
  EXPECT_EQ(qkv.rows, 24);
  EXPECT_EQ(qkv.cols, 5);
  ASSERT_EQ(qkv.parts.size(), 3u);
  EXPECT_EQ(qkv.parts[0].module, "model.layers.2.self_attn.q_proj");
  EXPECT_EQ(qkv.parts[0].row_count, 12);
  EXPECT_EQ(qkv.parts[1].module, "model.layers.2.self_attn.k_proj");
  EXPECT_EQ(qkv.parts[2].module, "model.layers.2.self_attn.v_proj");
  EXPECT_EQ(qkv.parts[2].row_count, 6);
  const VectorRef& bias = plan.vectors[attention.qkv.bias];
  ASSERT_EQ(bias.parts.size(), 3u);
  EXPECT_EQ(bias.parts[1].tensor, "model.layers.2.self_attn.k_proj.bias");
  EXPECT_EQ(VectorSize(bias), 24);
  EXPECT_EQ(VectorSize(plan.vectors[attention.output.bias]), 5);
  EXPECT_EQ(plan.ignored_tensors,
            std::vector<std::string>{"model.layers.2.self_attn.rotary_emb.inv_freq"});
}

}  // namespace
}  // namespace adder
