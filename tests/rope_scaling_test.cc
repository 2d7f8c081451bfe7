// Rotary scalings from config to logits, against what the reference implementations compute with
// the same weights and tokens: tests/cases/rope_scalings.json, which tools/make_rope_cases.py
// makes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "core/json.h"
#include "tests/support/parameters.h"

namespace adder::test {
namespace {

namespace fs = std::filesystem;

const Json& Cases() {
  static const Json cases =
      ReadJsonFile(RepositoryFolder() / "tests" / "cases" / "rope_scalings.json");
  return cases;
}

class RopeScaling : public testing::TestWithParam<ModelAndBackend> {};

TEST_P(RopeScaling, LogitsAreThoseOfTheReference) {
  const auto& [model, backend] = GetParam();
  const Json& entry = Cases()[model.name];
  const std::unique_ptr<Executor> executor = MakeExecutor(
      backend, LoadEdited(model.directory, entry["config"], entry["context"].get<int64_t>()));
  const auto tokens = entry["tokens"].get<std::vector<int32_t>>();
  const auto expected = entry["logits"].get<std::vector<std::vector<float>>>();
  const SequenceId sequence = executor->CreateSequence();
  executor->Forward({{sequence, tokens, LogitsRows::kAll}});
  ASSERT_EQ(executor->LogitsCount(), static_cast<int64_t>(tokens.size()));
  float largest = 0;
  for (size_t row = 0; row < expected.size(); ++row) {
    const size_t token = tokens.size() - expected.size() + row;
    const std::span<const float> logits = executor->Logits(static_cast<int64_t>(token));
    ASSERT_EQ(logits.size(), expected[row].size());
    for (size_t i = 0; i < logits.size(); ++i) {
      largest = std::max(largest, std::abs(logits[i] - expected[row][i]));
    }
  }
  // Of logits with a standard deviation of about 3.
  EXPECT_LT(largest, 1e-3);
}

std::vector<TestModel> ScaledModels() {
  std::vector<TestModel> models;
  for (const auto& [name, entry] : Cases().items()) {
    const fs::path kit = ConformanceKit() / "models" / entry["model"].get<std::string>();
    if (fs::exists(kit)) models.push_back({name, kit});
  }
  return models;
}

INSTANTIATE_TEST_SUITE_P(Kit, RopeScaling,
                         testing::Combine(testing::ValuesIn(ScaledModels()),
                                          testing::ValuesIn(ExactBackends())),
                         NameOf);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(RopeScaling);

}  // namespace
}  // namespace adder::test
