#include "measure/perplexity.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "engine/fake_executor_for_test.h"

namespace adder {
namespace {

constexpr int64_t kVocab = 5;

// The distribution after some tokens: token t has weight 1 + t, and the token that equals the
// number of tokens so far (their position in the window) 10 more.
std::vector<float> Distribution(const std::vector<int32_t>& tokens) {
  std::vector<float> logits;
  for (int64_t t = 0; t < kVocab; ++t) {
    const bool at_position = t == static_cast<int64_t>(tokens.size()) % kVocab;
    logits.push_back(std::log(static_cast<float>(1 + t + (at_position ? 10 : 0))));
  }
  return logits;
}

// What scoring `target` after `position` tokens costs by that distribution: weights sum to 25.
double Cost(int64_t position, int32_t target) {
  return -std::log((1.0 + target + (target == position % kVocab ? 10 : 0)) / 25.0);
}

TEST(NegativeLogLikelihood, IsExactForSmallAndHugeLogits) {
  const float logits[] = {std::log(1.0f), std::log(3.0f), std::log(4.0f)};
  EXPECT_NEAR(NegativeLogLikelihood(logits, 0), std::log(8.0), 1e-6);
  EXPECT_NEAR(NegativeLogLikelihood(logits, 2), std::log(2.0), 1e-6);
  const float huge[] = {10000.0f, 9998.0f};
  EXPECT_NEAR(NegativeLogLikelihood(huge, 1), 2 + std::log1p(std::exp(-2.0)), 1e-9);
}

TEST(Perplexity, BeginTokenStandsBeforeEveryWindow) {
  FakeExecutor executor(kVocab, Distribution);
  const std::vector<int32_t> text = {3, 1, 4, 2, 0};
  PerplexityOptions options;
  options.window = 3;
  options.begin_id = 4;
  const PerplexityResult result = MeasurePerplexity(executor, text, options);
  // Windows 3 1 4 | 2 0; the begin token makes the first target's position 1.
  const double expected = Cost(1, 3) + Cost(2, 1) + Cost(3, 4) + Cost(1, 2) + Cost(2, 0);
  EXPECT_NEAR(result.nats, expected, 1e-5);
  EXPECT_EQ(result.scored_tokens, 5);
  EXPECT_EQ(result.windows, 2);
  EXPECT_NEAR(result.NatsPerToken(), expected / 5, 1e-6);
  EXPECT_EQ(executor.sequence_count(), 0u);
}

TEST(Perplexity, WithoutOneTheFirstTokenIsContext) {
  FakeExecutor executor(kVocab, Distribution);
  const std::vector<int32_t> text = {3, 1, 4, 2};
  PerplexityOptions options;
  options.window = 3;
  const PerplexityResult result = MeasurePerplexity(executor, text, options);
  // The second window holds one token, of which nothing can be scored.
  EXPECT_NEAR(result.nats, Cost(1, 1) + Cost(2, 4), 1e-5);
  EXPECT_EQ(result.scored_tokens, 2);
}

TEST(Perplexity, LongWindowsRunInPieces) {
  FakeExecutor executor(kVocab, Distribution);
  std::vector<int32_t> text;
  double expected = 0;
  for (int i = 0; i < 200; ++i) {
    text.push_back((i * 7 + i / 3) % static_cast<int>(kVocab));
    expected += Cost(i + 1, text.back());
  }
  PerplexityOptions options;
  options.window = 1000;
  options.begin_id = 0;
  EXPECT_NEAR(MeasurePerplexity(executor, text, options).nats, expected, 1e-3);
  EXPECT_GT(executor.chunks().size(), 1u);
}

TEST(Perplexity, Errors) {
  FakeExecutor executor(kVocab, Distribution);
  PerplexityOptions options;
  EXPECT_THROW(MeasurePerplexity(executor, {}, options), Error);
  const std::vector<int32_t> one = {1};
  EXPECT_THROW(MeasurePerplexity(executor, one, options), Error);
  options.begin_id = 0;
  EXPECT_EQ(MeasurePerplexity(executor, one, options).scored_tokens, 1);
  options.window = 0;
  EXPECT_THROW(MeasurePerplexity(executor, one, options), Error);
}

}  // namespace
}  // namespace adder
