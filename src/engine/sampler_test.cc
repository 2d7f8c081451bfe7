#include "engine/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "core/error.h"

namespace adder {
namespace {

// Logits whose softmax at temperature 1 is 0.1, 0.4, 0.2, 0.3.
const std::vector<float> kLogits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};

// Share of each token over many draws.
std::map<int32_t, double> Shares(SamplingParameters parameters, const std::vector<float>& logits,
                                 const std::vector<int32_t>& context = {}) {
  constexpr int kDraws = 40000;
  parameters.seed = 99;
  Sampler sampler(parameters);
  std::map<int32_t, double> shares;
  for (int i = 0; i < kDraws; ++i) shares[sampler.Sample(logits, context)] += 1.0 / kDraws;
  return shares;
}

// Five standard deviations of a share near a half over the draws above.
constexpr double kTolerance = 5 * 0.0025;

TEST(Sampler, GreedyTakesTheFirstOfEqualLogits) {
  const std::vector<float> logits = {1, 3, -2, 3, 0};
  EXPECT_EQ(Greedy(logits), 1);
  Sampler sampler(SamplingParameters{});
  EXPECT_EQ(sampler.Sample(logits, {}), 1);
}

TEST(Sampler, GreedyLooksAtEveryLane) {
  for (size_t place : {0u, 15u, 16u, 31u, 32u, 36u}) {
    std::vector<float> logits(37, -1);
    logits[place] = 2;
    EXPECT_EQ(Greedy(logits), static_cast<int32_t>(place));
  }
}

TEST(Sampler, TemperatureOneGivesTheSoftmax) {
  auto shares = Shares({.temperature = 1}, kLogits);
  EXPECT_NEAR(shares[0], 0.1, kTolerance);
  EXPECT_NEAR(shares[1], 0.4, kTolerance);
  EXPECT_NEAR(shares[2], 0.2, kTolerance);
  EXPECT_NEAR(shares[3], 0.3, kTolerance);
}

TEST(Sampler, TemperatureSharpens) {
  // At temperature 1/2 probabilities are squared: 1 : 16 : 4 : 9.
  auto shares = Shares({.temperature = 0.5f}, kLogits);
  EXPECT_NEAR(shares[0], 1.0 / 30, kTolerance);
  EXPECT_NEAR(shares[1], 16.0 / 30, kTolerance);
  EXPECT_NEAR(shares[2], 4.0 / 30, kTolerance);
  EXPECT_NEAR(shares[3], 9.0 / 30, kTolerance);
}

TEST(Sampler, TinyTemperatureIsGreedy) {
  const auto shares = Shares({.temperature = 1e-30f}, kLogits);
  EXPECT_EQ(shares.size(), 1u);
  EXPECT_EQ(shares.begin()->first, 1);
}

TEST(Sampler, TopKKeepsTheMostLikely) {
  auto shares = Shares({.temperature = 1, .top_k = 2}, kLogits);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares[1], 4.0 / 7, kTolerance);
  EXPECT_NEAR(shares[3], 3.0 / 7, kTolerance);
}

TEST(Sampler, TopKOfEqualLogitsKeepsLowerIds) {
  const auto shares = Shares({.temperature = 1, .top_k = 2}, {5, 5, 5, 5});
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_TRUE(shares.contains(0) && shares.contains(1));
}

TEST(Sampler, TopPBoundary) {
  // Powers of two, so that the sums are exact: 1/2, 1/4, 1/8, 1/8.
  const std::vector<float> logits = {std::log(0.125f), std::log(0.5f), std::log(0.25f),
                                     std::log(0.125f)};
  // Just below the share of the first token, it alone is enough; just above, the next joins.
  EXPECT_EQ(Shares({.temperature = 1, .top_p = 0.499f}, logits).size(), 1u);
  EXPECT_EQ(Shares({.temperature = 1, .top_p = 0.501f}, logits).size(), 2u);
  EXPECT_EQ(Shares({.temperature = 1, .top_p = 0.749f}, logits).size(), 2u);
  auto shares = Shares({.temperature = 1, .top_p = 0.76f}, logits);
  EXPECT_EQ(shares.size(), 3u);
  EXPECT_TRUE(shares.contains(0));  // of two equally likely tokens the lower id
  EXPECT_NEAR(shares[1], 4.0 / 7, kTolerance);
}

TEST(Sampler, TopPIsAShareOfWhatTopKLeaves) {
  // After top-k the shares are 4/7 and 3/7; 0.5 of them is the first token alone.
  EXPECT_EQ(Shares({.temperature = 1, .top_k = 2, .top_p = 0.5f}, kLogits).size(), 1u);
  EXPECT_EQ(Shares({.temperature = 1, .top_p = 0.5f}, kLogits).size(), 2u);
}

TEST(Sampler, MinPIsRelativeToTheLikeliest) {
  // 0.6 x 0.4 = 0.24 keeps 0.4 and 0.3.
  auto shares = Shares({.temperature = 1, .min_p = 0.6f}, kLogits);
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_NEAR(shares[3], 3.0 / 7, kTolerance);
  EXPECT_EQ(Shares({.temperature = 1, .min_p = 1}, kLogits).size(), 1u);
}

TEST(Sampler, RepeatPenaltyDividesPositiveAndMultipliesNegative) {
  Sampler sampler({.repeat_penalty = 2});
  const std::vector<int32_t> context = {0, 0, 0};
  // 3 becomes 1.5, once however often the token occurred: above 1.4, below 1.6.
  EXPECT_EQ(sampler.Sample(std::vector<float>{3, 1.4f}, context), 0);
  EXPECT_EQ(sampler.Sample(std::vector<float>{3, 1.6f}, context), 1);
  // -1 becomes -2.
  EXPECT_EQ(sampler.Sample(std::vector<float>{-1, -2.1f}, context), 0);
  EXPECT_EQ(sampler.Sample(std::vector<float>{-1, -1.9f}, context), 1);
}

TEST(Sampler, RepeatPenaltyLooksAtTheWindowOnly) {
  Sampler sampler({.repeat_penalty = 4, .repeat_window = 2});
  const std::vector<float> logits = {3, 2, 1, 0};
  EXPECT_EQ(sampler.Sample(logits, std::vector<int32_t>{0, 2, 3}), 0);
  EXPECT_EQ(sampler.Sample(logits, std::vector<int32_t>{2, 3, 0}), 1);
}

TEST(Sampler, SameSeedSameTokens) {
  const auto draw = [](uint64_t seed) {
    Sampler sampler({.temperature = 1, .seed = seed});
    std::vector<int32_t> ids;
    for (int i = 0; i < 64; ++i) ids.push_back(sampler.Sample(kLogits, {}));
    return ids;
  };
  EXPECT_EQ(draw(7), draw(7));
  EXPECT_NE(draw(7), draw(8));
}

TEST(Sampler, RandomStreamIsSplitMix64) {
  // Outputs for seed 1234567 that are published with the algorithm's reference code.
  RandomStream random(1234567);
  EXPECT_EQ(random.Next(), 6457827717110365317u);
  EXPECT_EQ(random.Next(), 3203168211198807973u);
  EXPECT_EQ(random.Next(), 9817491932198370423u);
  RandomStream uniform(1234567);
  EXPECT_EQ(uniform.NextUniform(), static_cast<double>(6457827717110365317u >> 11) * 0x1p-53);
}

TEST(Sampler, MaskedTokensAreNeverTaken) {
  const float masked = -std::numeric_limits<float>::infinity();
  const auto shares = Shares({.temperature = 5}, {masked, 0, masked, 0.1f});
  EXPECT_EQ(shares.size(), 2u);
  EXPECT_TRUE(shares.contains(1) && shares.contains(3));
}

TEST(Sampler, RejectsLogitsThatAreNotFinite) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float temperature : {0.0f, 1.0f}) {
    Sampler sampler({.temperature = temperature});
    EXPECT_THROW(sampler.Sample(std::vector<float>{1, nan, 2}, {}), Error);
    EXPECT_THROW(sampler.Sample(std::vector<float>{1, infinity}, {}), Error);
    EXPECT_THROW(sampler.Sample(std::vector<float>{-infinity, -infinity}, {}), Error);
    EXPECT_THROW(sampler.Sample({}, {}), Error);
  }
}

TEST(Sampler, RejectsBadParameters) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const SamplingParameters& bad : std::vector<SamplingParameters>{
           {.temperature = -1},
           {.temperature = nan},
           {.temperature = infinity},
           {.top_k = -1},
           {.top_p = 0},
           {.top_p = 1.01f},
           {.top_p = nan},
           {.min_p = -0.1f},
           {.min_p = 2},
           {.min_p = nan},
           {.repeat_penalty = 0},
           {.repeat_penalty = -2},
           {.repeat_penalty = nan},
           {.repeat_window = -1},
       }) {
    EXPECT_THROW(Sampler{bad}, Error);
  }
}

}  // namespace
}  // namespace adder
