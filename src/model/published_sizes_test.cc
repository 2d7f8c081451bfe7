#include <gtest/gtest.h>
#include <algorithm>

#include <cmath>
#include <filesystem>
#include <map>
#include <string>

#include "model/family_test_support.h"

namespace adder {
namespace {

using namespace testing;  // NOLINT: the helpers of this room's tests

// What publishers and their model pages say, as exactly as they say it: `digits` is the last one
// stated. Of multimodal models the text model counts.
struct Published {
  double parameters;
  double digit;
};
constexpr double kMillion = 1e6, kBillion = 1e9;
const std::map<std::string, Published>& PublishedSizes() {
  static const std::map<std::string, Published> sizes = {
      {"bamba-9b", {9.78 * kBillion, 0.01 * kBillion}},
      {"falcon-h1-0.5b", {0.5 * kBillion, 0.1 * kBillion}},
      {"falcon-h1-1.5b", {1.55 * kBillion, 0.01 * kBillion}},
      {"falcon-h1-7b", {7.59 * kBillion, 0.01 * kBillion}},
      {"falcon-h1-tiny-90m-instruct", {90 * kMillion, 10 * kMillion}},
      {"falcon-mamba-7b", {7.27 * kBillion, 0.01 * kBillion}},
      {"gemma-4-26b-a4b", {25.2 * kBillion, 0.1 * kBillion}},
      {"glm-4.7-flash", {30 * kBillion, kBillion}},
      {"granite-4.0-h-1b", {1.5 * kBillion, 0.1 * kBillion}},
      {"granite-4.0-h-350m", {340 * kMillion, 10 * kMillion}},
      {"granite-4.0-h-micro", {3 * kBillion, kBillion}},
      {"granite-4.0-h-small", {32 * kBillion, kBillion}},
      {"granite-4.0-h-tiny", {7 * kBillion, kBillion}},
      {"hunyuan-1.8b", {1.8 * kBillion, 0.1 * kBillion}},
      {"hunyuan-a13b", {80 * kBillion, kBillion}},
      {"jamba-reasoning-3b", {3 * kBillion, kBillion}},
      {"jamba-v0.1", {52 * kBillion, kBillion}},
      {"kimi-linear-48b-a3b", {49 * kBillion, kBillion}},
      {"lfm2-1.2b", {1170340608, 1}},
      {"lfm2-2.6b", {2569272320, 1}},
      {"lfm2-350m", {354483968, 1}},
      {"lfm2-8b-a1b", {8.3 * kBillion, 0.1 * kBillion}},
      {"llama-3.2-1b", {1.24 * kBillion, 0.01 * kBillion}},
      {"mamba-130m", {129 * kMillion, kMillion}},
      {"mamba2-1.3b", {1.3 * kBillion, 0.1 * kBillion}},
      {"mamba2-130m", {130 * kMillion, 10 * kMillion}},
      {"mamba2-2.7b", {2.7 * kBillion, 0.1 * kBillion}},
      {"nemotron-3-nano-30b-a3b", {31.6 * kBillion, 0.1 * kBillion}},
      {"nemotron-h-8b", {8.1 * kBillion, 0.1 * kBillion}},
      {"nvidia-nemotron-nano-9b-v2", {8.89 * kBillion, 0.01 * kBillion}},
      {"plamo-2-1b", {1.29 * kBillion, 0.01 * kBillion}},
      {"qwen3-next-80b-a3b", {80 * kBillion, kBillion}},
      {"qwen3.5-0.8b", {0.8 * kBillion, 0.1 * kBillion}},
      {"qwen3.5-35b-a3b", {35 * kBillion, kBillion}},
      {"qwen3.5-4b", {4 * kBillion, kBillion}},
      {"recurrentgemma-2b", {2.68 * kBillion, 0.01 * kBillion}},
      {"rwkv7-168m-pile", {168 * kMillion, kMillion}},
      {"zamba2-1.2b", {1.22 * kBillion, 0.01 * kBillion}},
  };
  return sizes;
}

// Within one percent, or half of the last digit where less is known.
TEST(PublishedSizes, EveryGeometryHasItsNumberOfParameters) {
  ADDER_SKIP_WITHOUT("geometries");
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SharedFolder() / "geometries")) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().stem();
    const auto published = PublishedSizes().find(name);
    if (published == PublishedSizes().end()) {
      ADD_FAILURE() << "no published size of " << name;
      continue;
    }
    const auto [parameters, digit] = published->second;
    const Plan plan = BuildPlan(ReadJsonFile(entry.path()), TensorNames::Planned(false));
    EXPECT_NEAR(static_cast<double>(ParameterCount(plan)), parameters,
                std::max(0.01 * parameters, 0.5 * digit))
        << name;
    ++count;
  }
  EXPECT_GE(count, 38);
}

}  // namespace
}  // namespace adder
