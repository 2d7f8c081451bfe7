#include <gtest/gtest.h>

#include <cmath>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// All sizes differ, so that a swapped pair shows.
const char* const kConfig = R"({
  "architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 5, "vocab_size": 50, "rms_norm_eps": 1e-6,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention",
                  "sliding_attention", "full_attention"],
  "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "global_head_dim": 16,
  "sliding_window": 7, "num_kv_shared_layers": 2, "use_double_wide_mlp": true,
  "hidden_size_per_layer_input": 9, "vocab_size_per_layer_input": 50,
  "final_logit_softcapping": 30.0, "tie_word_embeddings": true,
  "rope_parameters": {
    "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
                       "rope_type": "proportional"},
    "sliding_attention": {"rope_theta": 5000.0, "rope_type": "default"}}})";

// Experts, and keys that are values, below a multimodal config.
const char* const kExperts = R"({
  "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4",
  "tie_word_embeddings": true, "vision_config": {"hidden_size": 10}, "text_config": {
    "hidden_size": 24, "intermediate_size": 14, "num_hidden_layers": 2, "vocab_size": 50,
    "layer_types": ["sliding_attention", "full_attention"], "num_attention_heads": 6,
    "num_key_value_heads": 3, "num_global_key_value_heads": 2, "head_dim": 8,
    "global_head_dim": 16, "attention_k_eq_v": true, "hidden_size_per_layer_input": 0,
    "enable_moe_block": true, "num_experts": 5, "top_k_experts": 2, "moe_intermediate_size": 11}})";

// As newer writers state the same: no field for all layers of full attention, but one for each.
Json WithLayerConfig(Json config, const char* per_layer_config) {
  config.erase("global_head_dim");
  return With(config, "per_layer_config", per_layer_config);
}

Json Config() { return ParseJson(kConfig, "config.json"); }
Json Experts() { return ParseJson(kExperts, "config.json"); }

const Attention& AttentionOf(const Plan& plan, size_t block) {
  return std::get<Attention>(plan.blocks[block].mixers[0]);
}

TEST(Gemma4, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  // Attention, MLP and the layer's own input.
  ASSERT_EQ(plan.blocks.size(), 15u);
  EXPECT_FLOAT_EQ(plan.embedding_scale, std::sqrt(24.0f));
  EXPECT_FLOAT_EQ(plan.logits_cap, 30.0f);
  const Attention& window = AttentionOf(plan, 0);
  EXPECT_EQ(window.head_dim, 8);
  EXPECT_EQ(window.window, 7);
  EXPECT_FLOAT_EQ(window.scale, 1.0f);
  EXPECT_EQ(window.rope->theta, 5000.0);
  EXPECT_EQ(window.v_norm->weight, kNoId);
  const Attention& full = AttentionOf(plan, 3);
  EXPECT_EQ(full.head_dim, 16);
  EXPECT_EQ(full.window, 0);
  EXPECT_TRUE(plan.blocks[0].post_norm.has_value());
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[1].mixers[0]).activation, Activation::kGeluTanh);
  // The layer scalar comes last.
  EXPECT_EQ(plan.blocks[1].rule.total, kNoId);
  EXPECT_EQ(plan.vectors[plan.blocks[2].rule.total].parts[0].tensor, "model.layers.0.layer_scalar");
}

TEST(Gemma4, NewerFilesStateTheHeadsOfFullAttentionByLayer) {
  const Plan same =
      BuildPlan(WithLayerConfig(Config(), R"({"1": {"head_dim": 16}, "4": {"head_dim": 16}})"));
  EXPECT_EQ(PlanString(same), PlanString(BuildPlan(Config())));
  const Plan plan =
      BuildPlan(WithLayerConfig(Config(), R"({"1": {"head_dim": 32, "num_key_value_heads": 2},
                    "04": {"head_dim": 32, "num_key_value_heads": 2}})"));
  EXPECT_EQ(AttentionOf(plan, 3).head_dim, 32);
  EXPECT_EQ(AttentionOf(plan, 3).kv_heads, 2);
  EXPECT_EQ(AttentionOf(plan, 3).rope->rotary_dim, 32);
  EXPECT_EQ(AttentionOf(plan, 0).head_dim, 8);
  EXPECT_EQ(AttentionOf(plan, 0).kv_heads, 3);
  // Without a word on them they are as all others.
  EXPECT_EQ(AttentionOf(BuildPlan(WithLayerConfig(Config(), "{}")), 3).head_dim, 8);

  for (const char* refused :
       {R"({"0": {"head_dim": 16}})", R"({"1": {"head_dim": 16}})", R"({"5": {"head_dim": 16}})",
        R"({"x": {}})", R"({"1": {"sliding_window": 4}, "4": {"sliding_window": 4}})",
        R"({"1": {"head_dim": -1}, "4": {"head_dim": -1}})", R"({"1": 3})", "[]",
        R"({"1": {"num_key_value_heads": 4}, "4": {"num_key_value_heads": 4}})"}) {
    ExpectRefused(Config(), "per_layer_config", refused, "per_layer_config");
  }
}

TEST(Gemma4, ProportionalRotationTurnsTheFirstPairsOfTheWholeHead) {
  const Plan plan = BuildPlan(Config());
  const Rope& rope = *AttentionOf(plan, 3).rope;
  EXPECT_EQ(rope.rotary_dim, 16);
  // A quarter of 8 pairs, with exponents of the whole head.
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[0], 1.0f);
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[1], std::pow(1e6f, -2.0f / 16));
  for (size_t i = 2; i < 8; ++i) EXPECT_EQ(rope.inverse_frequencies[i], 0.0f);
}

TEST(Gemma4, TheLastLayersShareKeysOfTheirKind) {
  const Plan plan = BuildPlan(Config());
  const Attention& window = AttentionOf(plan, 9);
  EXPECT_EQ(window.shared_kv_block, 6);  // layer 2, the last of its kind with keys
  EXPECT_EQ(window.qkv_rows(), 48);
  EXPECT_FALSE(window.k_norm.has_value());
  EXPECT_EQ(AttentionOf(plan, 12).shared_kv_block, 3);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[7].mixers[0]).intermediate, 14);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[10].mixers[0]).intermediate, 28);
}

TEST(Gemma4, EveryLayerHasInputsOfItsOwn) {
  const Plan plan = BuildPlan(Config());
  ASSERT_TRUE(plan.layer_inputs.has_value());
  EXPECT_EQ(plan.layer_inputs->parts, 5);
  EXPECT_EQ(plan.layer_inputs->width, 9);
  EXPECT_FLOAT_EQ(plan.layer_inputs->embedding_scale, 3.0f);
  EXPECT_FLOAT_EQ(plan.layer_inputs->projection.input_scale, 1.0f / std::sqrt(24.0f));
  EXPECT_FLOAT_EQ(plan.layer_inputs->scale, std::sqrt(0.5f));
  EXPECT_TRUE(plan.blocks[5].skip_pre_norm);
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[5].mixers[0]).layer_input, 1);
  EXPECT_FALSE(std::get<DenseMlp>(plan.blocks[5].mixers[0]).gated);
}

TEST(Gemma4, ExpertsStandBesideTheMlpWithNormsOfTheirOwn) {
  const Plan plan = BuildPlan(Experts());
  ASSERT_EQ(plan.blocks.size(), 4u);
  const Attention& full = AttentionOf(plan, 2);
  EXPECT_TRUE(full.values_from_keys);
  EXPECT_EQ(full.kv_heads, 2);
  EXPECT_EQ(full.qkv_rows(), (6 + 2) * 16);
  EXPECT_EQ(AttentionOf(plan, 0).kv_heads, 3);
  const Block& block = plan.blocks[1];
  ASSERT_EQ(block.branch_norms.size(), 2u);
  EXPECT_FALSE(block.branch_norms[0].pre.has_value());
  EXPECT_TRUE(block.branch_norms[0].post.has_value());
  EXPECT_TRUE(block.branch_norms[1].pre.has_value());
  const auto& moe = std::get<MoeMlp>(block.mixers[1]);
  EXPECT_FLOAT_EQ(moe.router.input_scale, 1.0f / std::sqrt(24.0f));
  EXPECT_EQ(plan.vectors[moe.router_norm->weight].parts[0].tensor,
            "model.language_model.layers.0.router.scale");
  EXPECT_NE(moe.routing.expert_scale, kNoId);
  const MatrixPart& part = plan.matrices[moe.gate_up[3]].parts[0];
  EXPECT_EQ(part.module, "model.language_model.layers.0.experts.gate_up_proj");
  EXPECT_TRUE(part.bare_name);
}

TEST(Gemma4, MlxFilesHaveNamesOfTheirOwn) {
  const Plan plan = BuildPlan(Experts(), TensorNames::Planned(true));
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[1]);
  const MatrixPart& part = plan.matrices[moe.gate_up[3]].parts[1];
  EXPECT_EQ(part.module, "language_model.model.layers.0.experts.switch_glu.up_proj");
  EXPECT_FALSE(part.bare_name);
  EXPECT_EQ(ParameterCount(plan), ParameterCount(BuildPlan(Experts())));
}

TEST(Gemma4, LayerTypesHaveDefaultsAndTheLastIsFull) {
  Json config = Without(With(Config(), "num_kv_shared_layers", "0"), "layer_types");
  config["num_hidden_layers"] = 8;
  const Plan plan = BuildPlan(config);
  for (size_t layer = 0; layer < 8; ++layer) {
    EXPECT_EQ(AttentionOf(plan, 3 * layer).window == 0, layer == 5 || layer == 7) << layer;
  }
}

TEST(Gemma4, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(
      Config(), {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
                 "vocab_size", "head_dim", "global_head_dim", "sliding_window"});
  ExpectRefused(Config(), "layer_types", R"(["full_attention"])", "layer_types");
  ExpectRefused(Config(), "layer_types", "[]", "layer_types");
  ExpectRefused(Config(), "num_kv_shared_layers", "5", "num_kv_shared_layers");
  ExpectRefused(Config(), "num_kv_shared_layers", "4", "num_kv_shared_layers");
  ExpectRefused(Config(), "use_bidirectional_attention", "\"all\"", "use_bidirectional_attention");
  ExpectRefused(Config(), "vocab_size_per_layer_input", "51", "vocab_size_per_layer_input");
  ExpectRefused(Config(), "final_logit_softcapping", "-1", "final_logit_softcapping");
  ExpectRefused(Config(), "rope_parameters", R"({"full_attention": {"rope_type": "yarn"}})",
                "rope_type");
  for (const char* factor : {"0", "-1", "1.5", "NaN"}) {
    ExpectRefused(Config(), "rope_parameters",
                  std::string(R"({"full_attention": {"rope_type": "proportional",
                                                     "partial_rotary_factor": )") +
                      factor + "}}",
                  "partial_rotary_factor");
  }
}

// No implementation reads them.
TEST(Gemma4, RotaryFieldsForAllLayersAreRefused) {
  ExpectRefused(Config(), "rope_parameters", R"({"rope_type": "linear", "factor": 8})",
                "rope_type");
  for (const char* field : {"factor", "rope_theta", "partial_rotary_factor"}) {
    Json config = Config();
    config["rope_parameters"][field] = 0.5;
    EXPECT_NE(BuildError(config).find(std::string("the field ") + field + " is 0.5"),
              std::string::npos);
  }
  ExpectRefused(Config(), "rope_scaling", R"({"rope_type": "linear", "factor": 8})",
                "rope_scaling");
  ExpectRefused(Without(Config(), "rope_parameters"), "rope_theta", "500", "rope_theta is 500");
  ExpectRefused(Config(), "partial_rotary_factor", "0.5", "partial_rotary_factor is 0.5");
  // Here every layer type has its own.
  EXPECT_EQ(AttentionOf(BuildPlan(With(Config(), "rope_theta", "500")), 0).rope->theta, 5000.0);
}

TEST(Gemma4, APartOfTheWindowedHeadsIsRefused) {
  Json config = Config();
  config["rope_parameters"]["sliding_attention"]["partial_rotary_factor"] = 0.5;
  EXPECT_NE(BuildError(config).find("partial_rotary_factor is 0.5; only 1"), std::string::npos);
}

TEST(Gemma4, ErrorsNameTheFieldThatIsWrong) {
  // Which heads cannot turn by halves.
  ExpectRefused(Config(), "head_dim", "7", "field head_dim (7)");
  ExpectRefused(Config(), "global_head_dim", "15", "field global_head_dim (15)");
  ExpectRefused(Config(), "per_layer_config", R"({"1": {"head_dim": 15}, "4": {"head_dim": 15}})",
                "per_layer_config: the field head_dim (15)");
  Json nested = Experts();
  nested["text_config"]["global_head_dim"] = -16;
  EXPECT_NE(BuildError(nested).find("text_config: the field global_head_dim is -16"),
            std::string::npos);
  // A multimodal config whose text model is not there, or is no object.
  for (const char* text : {"null", "3", "[]", "\"text\""}) {
    ExpectRefused(Experts(), "text_config", text, "text_config");
  }
  EXPECT_NE(BuildError(Without(Experts(), "text_config")).find("lacks the field text_config"),
            std::string::npos);
  ExpectRefused(Experts(), "text_config", "{}", "text_config lacks the field vocab_size");
}

TEST(Gemma4, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/gemma4_ple");
  CheckConformanceCase("models/gemma4_moe");
}

TEST(Gemma4, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  const Json config = ReadJsonFile(SharedFolder() / "geometries" / "gemma-4-26b-a4b.json");
  // The stated number leaves out the scales of layers, routers and experts, and the head norms.
  const int64_t left_out = 30 * (1 + 2816 + 128) + 2 * (25 * 256 + 5 * 512);
  for (const bool mlx : {false, true}) {
    EXPECT_EQ(ParameterCount(BuildPlan(config, TensorNames::Planned(mlx))),
              config["_params_computed"].get<int64_t>() + left_out);
  }
}

}  // namespace
}  // namespace adder
