#include <gtest/gtest.h>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

const char* const kConfig = R"({
  "architectures": ["FalconMambaForCausalLM"], "model_type": "falcon_mamba", "hidden_size": 24,
  "expand": 16, "intermediate_size": 40, "state_size": 5, "conv_kernel": 4, "time_step_rank": 3,
  "num_hidden_layers": 2, "vocab_size": 50, "layer_norm_epsilon": 1e-5, "mixer_rms_eps": 0.01,
  "use_bias": false, "tie_word_embeddings": false, "hidden_act": "silu"})";

Json Config() { return ParseJson(kConfig, "config.json"); }
const Mamba1& MixerOf(const Plan& plan) { return std::get<Mamba1>(plan.blocks[0].mixers[0]); }

TEST(FalconMamba, NormsOfTheMixerHaveNoWeight) {
  const Plan plan = BuildPlan(Config());
  EXPECT_EQ(plan.family, "falcon_mamba");
  const Mamba1& mamba = MixerOf(plan);
  // `expand` is in published files, but not used.
  EXPECT_EQ(mamba.inner, 40);
  for (const std::optional<RmsNorm>* norm : {&mamba.dt_norm, &mamba.b_norm, &mamba.c_norm}) {
    ASSERT_TRUE(norm->has_value());
    EXPECT_EQ((*norm)->weight, kNoId);
    EXPECT_FLOAT_EQ((*norm)->eps, 0.01f);
  }
  EXPECT_FLOAT_EQ(plan.blocks[0].pre_norm.eps, 1e-5f);
  EXPECT_NE(plan.head.weight, plan.embedding);
  EXPECT_FLOAT_EQ(MixerOf(BuildPlan(Without(Config(), "mixer_rms_eps"))).b_norm->eps, 1e-6f);
}

TEST(FalconMamba, AbsurdValuesAreRefused) {
  ExpectAbsurdSizesRefused(Config(), {"hidden_size", "intermediate_size", "state_size",
                                      "time_step_rank", "num_hidden_layers", "vocab_size"});
  ExpectAbsurdScalesRefused(Config(), {"mixer_rms_eps", "layer_norm_epsilon"});
}

TEST(FalconMamba, ClaimsEveryTensorOfTheConformanceCase) {
  ADDER_SKIP_WITHOUT("conformance");
  CheckConformanceCase("models/falcon_mamba");
}

TEST(FalconMamba, RealGeometry) {
  ADDER_SKIP_WITHOUT("geometries");
  EXPECT_EQ(MixerOf(CheckGeometry("falcon-mamba-7b")).inner, 8192);
}

}  // namespace
}  // namespace adder
