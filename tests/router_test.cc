// The experts that routers choose and how they weigh them, against what the reference
// implementations do with the same weights and tokens: tests/cases/router_choices.json, which
// tools/make_router_choices.py makes. Some cases are a model with other fields in its config, for
// rules that no checkpoint of the kit has.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "core/json.h"
#include "tests/support/parameters.h"

namespace adder::test {
namespace {

// Per token, the weight of every expert that counts.
using Choices = std::vector<std::map<int64_t, double>>;

struct Case {
  std::string model;  // of KitModels()
  Json config;        // fields that the model's config gets
  std::vector<int32_t> tokens;
  std::vector<Choices> layers;  // those with experts
};

const std::map<std::string, Case>& ReferenceCases() {
  static const std::map<std::string, Case> cases = [] {
    std::map<std::string, Case> read;
    const Json json = ReadJsonFile(RepositoryFolder() / "tests" / "cases" / "router_choices.json");
    for (const auto& [name, entry] : json.items()) {
      Case& expected = read[name];
      expected.model = entry.value("model", name);
      expected.config = entry.value("config", Json::object());
      expected.tokens = entry["tokens"].get<std::vector<int32_t>>();
      for (const Json& layer : entry["layers"]) {
        Choices& choices = expected.layers.emplace_back();
        for (const Json& token : layer) {
          auto& chosen = choices.emplace_back();
          for (const Json& pair : token) chosen[pair[0].get<int64_t>()] = pair[1].get<double>();
        }
      }
    }
    return read;
  }();
  return cases;
}

// What the router writes: of each token the weights of its choices, then the experts. A choice that
// weighs nothing, as that of no expert does, is as good as none.
Choices ReadChoices(const std::vector<float>& values, const RouterOp& router) {
  Choices choices;
  const int64_t width = 2 * router.top_k;
  for (size_t row = 0; row < values.size(); row += static_cast<size_t>(width)) {
    auto& chosen = choices.emplace_back();
    for (int64_t k = 0; k < router.top_k; ++k) {
      const float weight = values[row + static_cast<size_t>(k)];
      const auto expert = static_cast<int64_t>(values[row + static_cast<size_t>(router.top_k + k)]);
      if (weight != 0) chosen[expert] = weight;
    }
  }
  return choices;
}

class Router : public testing::TestWithParam<ModelAndBackend> {};

TEST_P(Router, ChoosesAndWeighsAsTheReference) {
  const auto& [model, backend] = GetParam();
  const Case& expected = ReferenceCases().at(model.name);
  const Program program = LoadEdited(model.directory, expected.config);
  ADDER_SKIP_UNSUPPORTED(backend, program);
  const std::unique_ptr<Executor> executor = MakeExecutor(backend, program);
  size_t layer = 0;
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const auto* router = std::get_if<RouterOp>(&program.ops[i].body);
    if (router == nullptr) continue;
    ASSERT_LT(layer, expected.layers.size());
    const SequenceId sequence = executor->CreateSequence();
    const std::vector<float> values = executor->ForwardUntil(
        {{sequence, expected.tokens, LogitsRows::kNone}}, static_cast<int>(i));
    executor->FreeSequence(sequence);
    const Choices found = ReadChoices(values, *router);
    ASSERT_EQ(found.size(), expected.tokens.size());
    for (size_t token = 0; token < found.size(); ++token) {
      const std::map<int64_t, double>& chosen = expected.layers[layer][token];
      ASSERT_EQ(found[token].size(), chosen.size()) << program.ops[i].name << ", token " << token;
      for (const auto& [expert, weight] : chosen) {
        ASSERT_TRUE(found[token].count(expert))
            << program.ops[i].name << ", token " << token << " lacks expert " << expert;
        EXPECT_NEAR(found[token].at(expert), weight, 1e-4 * std::max(1.0, weight))
            << program.ops[i].name << ", token " << token << ", expert " << expert;
      }
    }
    ++layer;
  }
  EXPECT_EQ(layer, expected.layers.size());
}

std::vector<TestModel> ModelsWithChoices() {
  std::vector<TestModel> models;
  for (const auto& [name, expected] : ReferenceCases()) {
    for (const TestModel& model : KitModels()) {
      if (model.name == expected.model) models.push_back({name, model.directory});
    }
  }
  return models;
}

INSTANTIATE_TEST_SUITE_P(Kit, Router,
                         testing::Combine(testing::ValuesIn(ModelsWithChoices()),
                                          testing::ValuesIn(ExactBackends())),
                         NameOf);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Router);

// Every family with experts has reference choices, or is known to lack them.
TEST(RouterCases, CoverEveryFamilyWithExperts) {
  if (!std::filesystem::exists(ConformanceKit())) {
    GTEST_SKIP() << "the conformance kit is not at " << ConformanceKit()
                 << "; set ADDER_SHARED to the folder that holds conformance/";
  }
  std::set<std::string> covered;
  std::set<std::string> with_experts;
  for (const TestModel& model : KitModels()) {
    const Program program = LoadProgram(model);
    if (!HasExperts(program)) continue;
    with_experts.insert(program.plan->family);
    if (ReferenceCases().count(model.name) > 0) covered.insert(program.plan->family);
  }
  EXPECT_EQ(covered, with_experts);
}

}  // namespace
}  // namespace adder::test
