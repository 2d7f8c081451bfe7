#include <gtest/gtest.h>

#include <cmath>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// No two sizes alike; two value heads to a key head.
const char* const kConfig = R"({
  "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 4, "full_attention_interval": 2,
  "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 8, "vocab_size": 50,
  "rms_norm_eps": 1e-5, "rope_theta": 5000, "partial_rotary_factor": 0.25,
  "linear_num_key_heads": 3, "linear_num_value_heads": 6, "linear_key_head_dim": 4,
  "linear_value_head_dim": 7, "linear_conv_kernel_dim": 3, "num_experts": 5,
  "num_experts_per_tok": 2, "moe_intermediate_size": 9, "shared_expert_intermediate_size": 11,
  "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [3],
  "tie_word_embeddings": false})";

Json Config() { return ParseJson(kConfig, "config.json"); }

TEST(Qwen3Next, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  ASSERT_EQ(plan.blocks.size(), 8u);
  const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
  EXPECT_EQ(delta.key_heads, 3);
  EXPECT_EQ(delta.value_heads, 6);
  EXPECT_EQ(delta.key_dim, 4);
  EXPECT_EQ(delta.value_dim, 7);
  EXPECT_EQ(delta.d_conv, 3);
  EXPECT_FALSE(delta.decay_per_channel);
  EXPECT_FLOAT_EQ(delta.beta_scale, 1);
  EXPECT_FLOAT_EQ(delta.qk_eps, 1e-6f);
  EXPECT_FLOAT_EQ(delta.query_scale, 0.5f);
  EXPECT_EQ(delta.gate_activation, Activation::kSilu);
  EXPECT_FLOAT_EQ(delta.norm.eps, 1e-5f);
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  EXPECT_TRUE(attention.output_gate);
  EXPECT_EQ(attention.kv_heads, 3);
  EXPECT_EQ(attention.rope->rotary_dim, 2);
  EXPECT_FLOAT_EQ(attention.scale, 1 / std::sqrt(8.0f));
  ASSERT_TRUE(attention.q_norm && attention.k_norm);
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(moe.experts, 5);
  EXPECT_EQ(moe.intermediate, 9);
  EXPECT_TRUE(moe.routing.plain());
  const auto& shared = std::get<DenseMlp>(plan.blocks[1].mixers[1]);
  EXPECT_EQ(shared.intermediate, 11);
  EXPECT_EQ(plan.matrices[shared.output_gate.weight].parts[0].module,
            "model.layers.0.mlp.shared_expert_gate");
  EXPECT_EQ(std::get<DenseMlp>(plan.blocks[7].mixers[0]).intermediate, 14);
}

// Rows of the fused projections: per key head q, k, v of its value heads, z of them; b, a.
TEST(Qwen3Next, FusedRowsAreTakenApartByKeyHead) {
  const Plan plan = BuildPlan(Config());
  const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
  const std::vector<MatrixPart>& parts = plan.matrices[delta.in_proj.weight].parts;
  ASSERT_EQ(parts.size(), 18u);
  const auto expect = [&](size_t part, const std::string& module, int64_t begin, int64_t count) {
    EXPECT_EQ(parts[part].module, "model.layers.0.linear_attn." + module) << part;
    EXPECT_EQ(parts[part].row_begin, begin) << part;
    EXPECT_EQ(parts[part].row_count, count) << part;
  };
  constexpr int64_t kGroup = 4 + 4 + 2 * 7 + 2 * 7;
  expect(1, "in_proj_qkvz", kGroup, 4);
  expect(4, "in_proj_qkvz", kGroup + 4, 4);
  expect(7, "in_proj_qkvz", kGroup + 8, 14);
  expect(10, "in_proj_ba", 4, 2);
  expect(13, "in_proj_ba", 6, 2);
  expect(16, "in_proj_qkvz", kGroup + 22, 14);
  const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
  const std::vector<MatrixPart>& qkv = plan.matrices[attention.qkv.weight].parts;
  ASSERT_EQ(qkv.size(), 14u);
  EXPECT_EQ(qkv[1].row_begin, 16);  // q of head 1, behind q and gate of head 0
  EXPECT_EQ(qkv[6].module, "model.layers.1.self_attn.k_proj");
  EXPECT_EQ(qkv[9].row_begin, 24);  // the gate of head 1
}

TEST(Qwen3Next, HuggingFaceNormsLackTheOneThatMlxNormsHave) {
  const auto transforms = [](const Plan& plan) {
    const auto& delta = std::get<GatedDelta>(plan.blocks[0].mixers[0]);
    const auto& attention = std::get<Attention>(plan.blocks[2].mixers[0]);
    std::vector<VectorTransform> found;
    for (VectorId id :
         {plan.final_norm.weight, plan.blocks[0].pre_norm.weight, plan.blocks[1].pre_norm.weight,
          attention.q_norm->weight, attention.k_norm->weight, delta.norm.weight}) {
      found.push_back(plan.vectors[id].transform);
    }
    return found;
  };
  std::vector<VectorTransform> expected(6, VectorTransform::kPlusOne);
  expected.back() = VectorTransform::kIdentity;  // the norm behind the delta rule
  EXPECT_EQ(transforms(BuildPlan(Config())), expected);
  expected.assign(6, VectorTransform::kIdentity);
  EXPECT_EQ(transforms(BuildPlan(Config(), TensorNames::Planned(true))), expected);
}

TEST(Qwen3Next, MlxFilesStackTheExperts) {
  const Plan plan = BuildPlan(Config(), TensorNames::Planned(true));
  const auto& moe = std::get<MoeMlp>(plan.blocks[1].mixers[0]);
  EXPECT_EQ(plan.matrices[moe.down[3]].parts[0].module, "model.layers.0.mlp.switch_mlp.down_proj");
}

TEST(Qwen3Next, LayerTypesMayBeListed) {
  Json config = Config();
  config["layer_types"] = {"full_attention", "linear_attention", "linear_attention",
                           "full_attention"};
  const Plan plan = BuildPlan(config);
  EXPECT_EQ(MixerName(plan.blocks[0].mixers[0]), "Attention");
  EXPECT_EQ(MixerName(plan.blocks[2].mixers[0]), "GatedDelta");
  // Which layout norms have is told by a convolution.
  ExpectRefused(Config(), "full_attention_interval", "1", "full_attention_interval");
}

TEST(Qwen3Next, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "attention_bias", "true", "attention_bias is true");
  ExpectRefused(Config(), "use_sliding_window", "true", "use_sliding_window is true");
  ExpectRefused(Config(), "hidden_act", "\"gelu\"", "hidden_act");
  ExpectRefused(Config(), "linear_num_value_heads", "7", "linear_num_value_heads (7)");
  ExpectRefused(Config(), "num_experts_per_tok", "6", "num_experts_per_tok");
  ExpectRefused(Config(), "mlp_only_layers", "[4]", "mlp_only_layers");
  ExpectAbsurdSizesRefused(
      Config(),
      {"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "head_dim",
       "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
       "linear_value_head_dim", "linear_conv_kernel_dim", "num_experts", "moe_intermediate_size",
       "shared_expert_intermediate_size", "full_attention_interval"});
}

TEST(Qwen3Next, ClaimsEveryTensorOfTheConformanceCases) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/qwen3_next");
  CheckConformanceCase("mlx/qwen3_next_4bit");
}

TEST(Qwen3Next, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("qwen3-next-80b-a3b");
}

}  // namespace
}  // namespace adder
