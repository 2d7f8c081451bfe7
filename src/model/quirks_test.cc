// What sets published checkpoints and reference implementations apart in ways that are easy to
// miss: those that several families share, or that no other test is named for. docs/quirks.md lists
// all, with their tests.
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

Json KitConfig(const std::string& name) {
  return ReadJsonFile(SharedFolder() / "conformance" / "models" / name / "config.json");
}

const Mamba2& FirstMamba2(const Plan& plan) {
  for (const Block& block : plan.blocks) {
    for (const Mixer& mixer : block.mixers) {
      if (const auto* mamba = std::get_if<Mamba2>(&mixer)) return *mamba;
    }
  }
  Fail("The plan has no Mamba-2.");
}

TEST(Quirks, TheGatedNormSpansAllGroupsOrEachAlone) {
  ADDER_SKIP_WITHOUT("conformance");
  struct Form {
    const char* name;
    const char* groups;  // the field
    bool each;
  };
  for (const Form& form :
       {Form{"mamba2", "n_groups", false}, Form{"granitemoehybrid_dense", "mamba_n_groups", false},
        Form{"bamba", "mamba_n_groups", false},
        Form{"falcon_h1_norm_after", "mamba_n_groups", true},
        Form{"falcon_h1_norm_before", "mamba_n_groups", true},
        Form{"nemotron_h_dense", "n_groups", true}, Form{"zamba2", "mamba_ngroups", true}}) {
    const Plan plan = BuildPlan(With(KitConfig(form.name), form.groups, "2"));
    const Mamba2& mamba = FirstMamba2(plan);
    EXPECT_EQ(mamba.groups, 2) << form.name;
    ASSERT_TRUE(mamba.gated_norm.has_value()) << form.name;
    EXPECT_EQ(mamba.gated_norm->groups, form.each ? 2 : 1) << form.name;
  }
}

TEST(Quirks, TimeStepsHaveNoLimitWhereNoneIsStated) {
  ADDER_SKIP_WITHOUT("conformance");
  for (const char* name : {"mamba2", "granitemoehybrid_dense", "bamba", "falcon_h1_norm_after",
                           "nemotron_h_dense", "nemotron_h_moe"}) {
    const Json config = KitConfig(name);
    for (const Json& variant :
         {Without(config, "time_step_limit"), With(config, "time_step_limit", "null"),
          With(config, "time_step_limit", "[0, Infinity]"),
          With(config, "time_step_limit", R"([0, {"__float__": "Infinity"}])")}) {
      const Plan plan = BuildPlan(variant);
      EXPECT_EQ(FirstMamba2(plan).dt_min, 0.0f) << name;
      EXPECT_EQ(FirstMamba2(plan).dt_max, std::numeric_limits<float>::infinity()) << name;
    }
    const Plan limited = BuildPlan(With(config, "time_step_limit", "[0.01, 0.5]"));
    EXPECT_EQ(FirstMamba2(limited).dt_min, 0.01f) << name;
    EXPECT_EQ(FirstMamba2(limited).dt_max, 0.5f) << name;
  }
}

TEST(Quirks, TheMlpOfGraniteHasTheWidthOfItsLayout) {
  ADDER_SKIP_WITHOUT("conformance");
  Json config = KitConfig("granitemoehybrid_dense");
  config["intermediate_size"] = 40;
  config["shared_intermediate_size"] = 48;
  for (const bool mlx : {false, true}) {
    const Plan plan = BuildPlan(config, TensorNames::Planned(mlx));
    EXPECT_EQ(std::get<DenseMlp>(plan.blocks[1].mixers[0]).intermediate, mlx ? 40 : 48);
  }
}

TEST(Quirks, SomeRoutersAreNeverQuantised) {
  ADDER_SKIP_WITHOUT("conformance");
  for (const char* name : {"nemotron_h_moe", "zaya"}) {
    const Plan plan = BuildPlan(KitConfig(name));
    int routers = 0;
    for (const Block& block : plan.blocks) {
      for (const Mixer& mixer : block.mixers) {
        const auto* moe = std::get_if<MoeMlp>(&mixer);
        if (moe == nullptr) continue;
        EXPECT_TRUE(plan.matrices[static_cast<size_t>(moe->router.weight)].always_float) << name;
        ++routers;
      }
    }
    EXPECT_GT(routers, 0) << name;
  }
}

}  // namespace
}  // namespace adder
