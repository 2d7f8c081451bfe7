#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["HunYuanMoEV1ForCausalLM"], "model_type": "hunyuan", "hidden_size": 24,
  "intermediate_size": 14, "num_hidden_layers": 2, "num_attention_heads": 6,
  "num_key_value_heads": 3, "vocab_size": 50, "rms_norm_eps": 1e-5, "rope_theta": 10000,
  "rope_scaling": {"type": "dynamic", "alpha": 1000.0}, "num_experts": 5, "moe_topk": [2, 3],
  "num_shared_expert": [1, 2], "moe_intermediate_size": [9, 11], "use_mixed_mlp_moe": true,
  "norm_topk_prob": true, "tie_word_embeddings": true})";

Json Config() { return ParseJson(kConfig, "config.json"); }
const MoeMlp& MoeOf(const Plan& plan, size_t layer) {
  return std::get<MoeMlp>(plan.blocks[2 * layer + 1].mixers[0]);
}
const DenseMlp& SharedOf(const Plan& plan, size_t layer) {
  return std::get<DenseMlp>(plan.blocks[2 * layer + 1].mixers[1]);
}

TEST(HunyuanMoe, PlanFollowsTheConfig) {
  const Plan plan = BuildPlan(Config());
  EXPECT_EQ(plan.family, "hunyuan_v1_moe");
  EXPECT_EQ(MoeOf(plan, 0).top_k, 2);
  EXPECT_EQ(MoeOf(plan, 1).top_k, 3);
  EXPECT_EQ(MoeOf(plan, 1).intermediate, 11);
  EXPECT_TRUE(MoeOf(plan, 0).routing.plain());
  EXPECT_EQ(SharedOf(plan, 0).intermediate, 14);
  EXPECT_EQ(SharedOf(plan, 1).intermediate, 28);
  EXPECT_EQ(plan.matrices[MoeOf(plan, 0).router.weight].parts[0].module,
            "model.layers.0.mlp.gate.wg");
  const Plan scalar = BuildPlan(With(With(Config(), "moe_topk", "4"), "num_shared_expert", "3"));
  EXPECT_EQ(MoeOf(scalar, 1).top_k, 4);
  EXPECT_EQ(SharedOf(scalar, 0).intermediate, 42);
  EXPECT_EQ(BuildPlan(With(Config(), "use_mixed_mlp_moe", "false")).blocks[1].mixers.size(), 1u);
}

TEST(HunyuanMoe, OtherNamesOfTheFields) {
  const Json named = Without(Without(Config(), "moe_topk"), "num_experts");
  const Plan plan =
      BuildPlan(With(With(named, "num_experts_per_tok", "4"), "num_local_experts", "5"));
  EXPECT_EQ(MoeOf(plan, 0).top_k, 4);
  EXPECT_EQ(MoeOf(plan, 1).experts, 5);
  const Plan listed =
      BuildPlan(With(With(named, "num_experts_per_tok", "[1, 3]"), "num_local_experts", "[5, 6]"));
  EXPECT_EQ(MoeOf(listed, 1).top_k, 3);
  EXPECT_EQ(MoeOf(listed, 1).experts, 6);
  EXPECT_EQ(MoeOf(BuildPlan(With(Config(), "num_experts_per_tok", "[2, 3]")), 1).top_k, 3);
  EXPECT_EQ(MoeOf(BuildPlan(With(Config(), "num_local_experts", "[5, 5]")), 1).experts, 5);
  // The reference's default.
  EXPECT_EQ(MoeOf(BuildPlan(With(named, "num_experts", "5")), 0).top_k, 1);
  ExpectRefused(Config(), "num_experts_per_tok", "2", "num_experts_per_tok is 2, but moe_topk");
  ExpectRefused(Config(), "num_local_experts", "6", "num_local_experts is 6, but num_experts is 5");
  ExpectRefused(named, "num_local_experts", "[5]", "num_local_experts has 1 entries");
}

TEST(HunyuanMoe, UnimplementedAndAbsurdValuesAreRefused) {
  ExpectRefused(Config(), "moe_topk", "[2]", "moe_topk");
  ExpectRefused(Config(), "moe_topk", "[2, -1]", "moe_topk");
  ExpectRefused(Config(), "moe_topk", "6", "top_k");
  ExpectRefused(Config(), "norm_topk_prob", "false", "norm_topk_prob is false");
  ExpectRefused(Config(), "moe_layer_num_skipped", "1", "moe_layer_num_skipped is 1");
  ExpectRefused(With(Config(), "head_dim", "10"), "attention_head_dim", "12",
                "attention_head_dim is 12");
  ExpectRefused(Config(), "routed_scaling_factor", "2.5", "routed_scaling_factor is 2.5");
  ExpectAbsurdSizesRefused(Config(), {"hidden_size", "intermediate_size", "num_hidden_layers",
                                      "num_attention_heads", "vocab_size"});
}

TEST(HunyuanMoe, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/hunyuan_v1_moe");
}

TEST(HunyuanMoe, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  CheckGeometry("hunyuan-a13b");
}

}  // namespace
}  // namespace adder
