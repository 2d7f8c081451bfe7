// Reference values: every kit case of the implemented families, and the demo model, on every
// backend. Logits at every prompt position, logits of the first greedy steps fed token by token,
// and the greedy tokens.
#include <gtest/gtest.h>
#include <algorithm>

#include <iostream>
#include <set>

#include "core/json.h"
#include "model/family.h"
#include "tests/support/numbers.h"
#include "tests/support/parameters.h"

namespace adder::test {
namespace {

// A greedy step whose reference margin is smaller may go either way.
constexpr float kTieMargin = 1e-3f;

// Bounds of CUDA's fast mode (bf16 activations). Where one rounding can choose another expert, or
// adapters magnify it, no fixed bound holds: there it may be half as much farther from f32 as the
// reference implementation's own bf16 (tests/cases/reference_bf16.json, by
// tools/make_bf16_bounds.py), for it is chance which tokens meet another expert.
constexpr double kBf16Kl = 1e-2;
constexpr float kBf16Margin = 0.3f;
constexpr double kOfReferenceBf16 = 1.5;

// Bounds of the CPU's fast mode (int8 activations), about 1.5 to 2 times the worst that was
// measured over the kit's quantised cases: mean KL 0.006 to 0.016 nats without experts and 0.019 to
// 0.127 with (a near tie between experts can fall the other way, and a recurrent state remembers
// it); steps with another token than the reference had margins of at most 1.02, on logits with a
// standard deviation of 3; 87% to 95% of all greedy steps agreed.
constexpr double kFastKl = 0.04;
constexpr double kFastKlWithExperts = 0.25;
constexpr float kFastMargin = 2.0f;
constexpr double kFastAgreement = 0.85;

// What comparing one model on one backend found.
struct Findings {
  double max_error = 0;
  double kl_sum = 0;
  int64_t rows = 0;
  int64_t steps = 0;      // greedy steps compared, of any margin
  int64_t agreed = 0;     // of them, with the same token
  float widest_miss = 0;  // largest reference margin of a step with another token
};

struct Bounds {
  double kl = kBf16Kl;
  float margin = kBf16Margin;
};

// Quantised cases have the sizes of one that is not, whose name theirs begins with.
Bounds Bf16Bounds(const std::string& name) {
  static const Json reference =
      ReadJsonFile(RepositoryFolder() / "tests/cases/reference_bf16.json");
  Bounds bounds;
  for (const std::string& known : {name, name.substr(0, name.find("_4bit"))}) {
    if (!reference.contains(known)) continue;
    const auto of = [&](const char* field) {
      return kOfReferenceBf16 * reference[known][field].get<double>();
    };
    bounds.kl = std::max(bounds.kl, of("mean_kl"));
    bounds.margin = std::max(bounds.margin, static_cast<float>(of("widest_miss")));
  }
  return bounds;
}

class Conformance : public testing::TestWithParam<ModelAndBackend> {
 protected:
  void Compare(std::span<const float> reference, std::span<const float> ours, Findings& findings) {
    findings.max_error = std::max(findings.max_error, MaxDifference(ours, reference));
    findings.kl_sum += KlDivergence(reference, ours);
    ++findings.rows;
  }

  // One prompt: prefill in one go, then the reference's greedy tokens one by one, whatever ours
  // would have been, so that one wrong token does not spoil the rest.
  void Run(Executor& executor, const ExpectedPrompt& expected, Findings& findings) {
    const auto vocab = static_cast<size_t>(executor.program().plan->vocab);
    const SequenceId id = executor.CreateSequence();
    executor.Forward({{id, expected.prompt, LogitsRows::kAll}});
    ASSERT_EQ(executor.LogitsCount(), static_cast<int64_t>(expected.prompt.size()));
    for (size_t row = 0; row * vocab < expected.prefill.size(); ++row) {
      Compare(std::span(expected.prefill).subspan(row * vocab, vocab),
              executor.Logits(static_cast<int64_t>(row)), findings);
    }
    ASSERT_EQ(expected.greedy.size(), expected.margins.size());
    for (size_t step = 0; step < expected.greedy.size(); ++step) {
      const std::span<const float> logits = executor.Logits(executor.LogitsCount() - 1);
      if (step * vocab < expected.steps.size()) {
        Compare(std::span(expected.steps).subspan(step * vocab, vocab), logits, findings);
      }
      ++findings.steps;
      if (ArgMax(logits) == expected.greedy[step]) {
        ++findings.agreed;
      } else {
        findings.widest_miss = std::max(findings.widest_miss, expected.margins[step]);
      }
      const std::span<const int32_t> next(&expected.greedy[step], 1);
      executor.Forward({{id, next, LogitsRows::kLast}});
    }
    executor.FreeSequence(id);
  }
};

TEST_P(Conformance, MatchesReference) {
  const auto& [model, backend] = GetParam();
  const Expected expected = LoadExpected(model);
  ASSERT_FALSE(expected.prompts.empty());
  Program program = LoadProgram(model);
  ADDER_SKIP_UNSUPPORTED(backend, program);
  const bool has_experts = std::any_of(program.ops.begin(), program.ops.end(), [](const Op& op) {
    return std::holds_alternative<RouterOp>(op.body);
  });
  const auto executor = MakeExecutor(backend, std::move(program));
  Findings findings;
  for (const ExpectedPrompt& prompt : expected.prompts) Run(*executor, prompt, findings);
  ASSERT_GT(findings.rows, 0);

  const double kl = findings.kl_sum / static_cast<double>(findings.rows);
  RecordProperty("max_error", std::to_string(findings.max_error));
  RecordProperty("mean_kl", std::to_string(kl));
  RecordProperty("greedy_agreement",
                 std::to_string(findings.agreed) + "/" + std::to_string(findings.steps));
  std::cout << model.name << " " << BackendName(backend) << ": max error " << findings.max_error
            << ", mean KL " << kl << ", greedy " << findings.agreed << "/" << findings.steps
            << ", widest miss " << findings.widest_miss << "\n";
  if (IsExact(backend)) {
    EXPECT_LE(findings.max_error, expected.f32_tolerance);
    EXPECT_LE(findings.widest_miss, kTieMargin);
  } else if (backend != Backend::kCpuFast) {
    const Bounds bounds = Bf16Bounds(model.name);
    EXPECT_LE(kl, bounds.kl);
    EXPECT_LE(findings.widest_miss, bounds.margin);
  } else {
    EXPECT_LE(kl, has_experts ? kFastKlWithExperts : kFastKl);
    EXPECT_LE(findings.widest_miss, kFastMargin);
    EXPECT_GE(static_cast<double>(findings.agreed),
              kFastAgreement * static_cast<double>(findings.steps));
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(Conformance);
INSTANTIATE_TEST_SUITE_P(Kit, Conformance,
                         testing::Combine(testing::ValuesIn(KitModels()),
                                          testing::ValuesIn(AllBackends())),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Demo, Conformance,
                         testing::Combine(testing::ValuesIn(DemoModels()),
                                          testing::ValuesIn(AllBackends())),
                         NameOf);

TEST(ConformanceKit, CoversEveryFamily) {
  if (!std::filesystem::exists(ConformanceKit())) {
    GTEST_SKIP() << "the conformance kit is not at " << ConformanceKit()
                 << "; set ADDER_SHARED to the folder that holds conformance/";
  }
  std::set<std::string> covered;
  for (const TestModel& model : KitModels()) covered.insert(LoadProgram(model).plan->family);
  // The kit has no case of this one: attention is that of qwen3, experts are compared with
  // formulas.
  covered.insert("qwen3_moe");
  for (const Family* family : AllFamilies()) {
    EXPECT_TRUE(covered.count(std::string(family->model_type))) << family->model_type;
  }
}

}  // namespace
}  // namespace adder::test
