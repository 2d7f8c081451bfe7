// The demo model on the GPU against the CPU's f32 answers: twenty prompts from text that it was not
// trained on, forty greedy tokens each.
#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <sstream>

#include "tests/support/backends.h"
#include "tests/support/numbers.h"
#include "tests/support/test_models.h"
#include "text/tokenizer.h"

namespace adder::test {
namespace {

constexpr size_t kPrompts = 20;
constexpr size_t kSteps = 40;
// Steps of a smaller margin may go either way: in f32, and with bf16 activations.
constexpr float kTieMargin = 1e-3f;
constexpr float kFastTieMargin = 0.3f;
constexpr double kFastKl = 1e-2;

// A prompt's greedy continuation by the CPU: the logits that each token was chosen from.
struct Continuation {
  std::vector<int32_t> prompt;
  std::vector<int32_t> tokens;
  std::vector<std::vector<float>> logits;
};

std::vector<float> LastLogits(const Executor& executor) {
  const std::span<const float> logits = executor.Logits(executor.LogitsCount() - 1);
  return {logits.begin(), logits.end()};
}

class DemoParity : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (DemoModels().empty() || AllBackends().back() != Backend::kCudaWide) return;
    const std::filesystem::path directory = DemoModels()[0].directory;
    std::ifstream file(directory / "heldout_sample.txt");
    std::ostringstream text;
    text << file.rdbuf();
    const text::Tokenizer tokenizer = text::Tokenizer::Load(directory);
    const std::vector<int32_t> all = tokenizer.Encode(text.str(), false);
    const auto executor = MakeExecutor(Backend::kCpuF32, LoadProgram(DemoModels()[0]));
    for (size_t i = 0; i < kPrompts; ++i) {
      const size_t length = 1 + i * i % 60;
      const size_t first = i * all.size() / kPrompts;
      Continuation continuation;
      continuation.prompt.assign(all.begin() + static_cast<std::ptrdiff_t>(first),
                                 all.begin() + static_cast<std::ptrdiff_t>(first + length));
      const SequenceId id = executor->CreateSequence();
      executor->Forward({{id, continuation.prompt, LogitsRows::kLast}});
      while (continuation.tokens.size() < kSteps) {
        continuation.logits.push_back(LastLogits(*executor));
        continuation.tokens.push_back(ArgMax(continuation.logits.back()));
        const std::span<const int32_t> next(&continuation.tokens.back(), 1);
        executor->Forward({{id, next, LogitsRows::kLast}});
      }
      executor->FreeSequence(id);
      continuations_.push_back(std::move(continuation));
    }
  }

  void SetUp() override {
    if (DemoModels().empty()) {
      GTEST_SKIP() << "the demo model is missing; set ADDER_DEMO_MODEL to its folder";
    }
    if (continuations_.empty()) GTEST_SKIP() << "there is no CUDA device";
  }

  static inline std::vector<Continuation> continuations_;
};

TEST_F(DemoParity, GreedyTokensInF32) {
  const auto executor = MakeExecutor(Backend::kCudaF32, LoadProgram(DemoModels()[0]));
  size_t compared = 0;
  for (const Continuation& expected : continuations_) {
    const SequenceId id = executor->CreateSequence();
    executor->Forward({{id, expected.prompt, LogitsRows::kLast}});
    for (size_t step = 0; step < kSteps; ++step) {
      const int32_t token = ArgMax(LastLogits(*executor));
      // Behind a tie that fell the other way, the texts differ.
      if (token != expected.tokens[step] && Margin(expected.logits[step]) <= kTieMargin) break;
      ASSERT_EQ(token, expected.tokens[step])
          << "step " << step << ", margin " << Margin(expected.logits[step]);
      ++compared;
      executor->Forward({{id, std::span(&token, 1), LogitsRows::kLast}});
    }
    executor->FreeSequence(id);
  }
  EXPECT_GE(compared, kPrompts * kSteps * 9 / 10);
  std::cout << "demo cuda_f32: " << compared << " of " << kPrompts * kSteps
            << " greedy tokens compared, all equal\n";
}

TEST_F(DemoParity, TopTokensInTheDefaultMode) {
  const auto executor = MakeExecutor(Backend::kCudaFast, LoadProgram(DemoModels()[0]));
  size_t agreed = 0;
  float widest_miss = 0;
  double kl = 0;
  for (const Continuation& expected : continuations_) {
    const SequenceId id = executor->CreateSequence();
    executor->Forward({{id, expected.prompt, LogitsRows::kLast}});
    for (size_t step = 0; step < kSteps; ++step) {
      const std::vector<float> logits = LastLogits(*executor);
      kl += KlDivergence(expected.logits[step], logits);
      if (ArgMax(logits) == expected.tokens[step]) {
        ++agreed;
      } else {
        widest_miss = std::max(widest_miss, Margin(expected.logits[step]));
      }
      executor->Forward({{id, std::span(&expected.tokens[step], 1), LogitsRows::kLast}});
    }
    executor->FreeSequence(id);
  }
  kl /= static_cast<double>(kPrompts * kSteps);
  std::cout << "demo cuda_fast: mean KL " << kl << ", top token " << agreed << "/"
            << kPrompts * kSteps << ", widest miss " << widest_miss << "\n";
  EXPECT_LE(widest_miss, kFastTieMargin);
  EXPECT_LE(kl, kFastKl);
}

}  // namespace
}  // namespace adder::test
