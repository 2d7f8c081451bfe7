#include "cpu/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/moe.h"
#include "cpu/simd_targets_for_test.h"

namespace adder {
namespace {

class ElementwiseTest : public OnEveryTarget {};

std::vector<float> Wave(size_t size, float step) {
  std::vector<float> values(size);
  for (size_t i = 0; i < size; ++i) values[i] = 3.0f * std::sin(step * static_cast<float>(i) + 1);
  return values;
}

TEST_P(ElementwiseTest, RmsNormEqualsTheFormula) {
  for (int64_t part : {1, 5, 16, 37}) {
    for (int64_t groups : {1, 3}) {
      const auto size = static_cast<size_t>(part * groups);
      const std::vector<float> x = Wave(size, 0.7f);
      const std::vector<float> weight = Wave(size, 0.3f);
      std::vector<float> out = x;  // in place
      RmsNormRow(out.data(), weight.data(), part * groups, groups, 0.01f, out.data());
      for (size_t i = 0; i < size; ++i) {
        const size_t begin = i / static_cast<size_t>(part) * static_cast<size_t>(part);
        double squares = 0;
        for (size_t j = begin; j < begin + static_cast<size_t>(part); ++j) {
          squares += static_cast<double>(x[j]) * x[j];
        }
        const double expected = x[i] / std::sqrt(squares / part + 0.01) * weight[i];
        EXPECT_NEAR(out[i], expected, 2e-6 * (1 + std::abs(expected)));
      }
    }
  }
}

TEST_P(ElementwiseTest, LayerNormEqualsTheFormula) {
  for (size_t size : {size_t{1}, size_t{5}, size_t{16}, size_t{37}}) {
    std::vector<float> x = Wave(size, 0.7f);
    for (float& value : x) value += 4.0f;
    const std::vector<float> weight = Wave(size, 0.3f);
    const std::vector<float> bias = Wave(size, 0.5f);
    double mean = 0;
    for (float value : x) mean += value / static_cast<double>(size);
    double squares = 0;
    for (float value : x) squares += (value - mean) * (value - mean);
    std::vector<float> out = x;  // in place
    LayerNormRow(out.data(), weight.data(), bias.data(), static_cast<int64_t>(size), 0.01f,
                 out.data());
    for (size_t i = 0; i < size; ++i) {
      const double expected =
          (x[i] - mean) / std::sqrt(squares / static_cast<double>(size) + 0.01) * weight[i] +
          bias[i];
      EXPECT_NEAR(out[i], expected, 1e-5 * (1 + std::abs(expected))) << size;
    }
  }
}

TEST_P(ElementwiseTest, TokenShiftEqualsTheFormula) {
  const std::vector<float> y = Wave(19, 0.7f);
  const std::vector<float> previous = Wave(19, 0.3f);
  const std::vector<float> mix = Wave(2 * 19, 0.5f);
  std::vector<float> out(2 * 19 + 1, 5.0f);
  TokenShiftRow(y.data(), previous.data(), mix.data(), 2, 19, out.data());
  for (size_t i = 0; i < 2 * 19; ++i) {
    const size_t k = i % 19;
    EXPECT_NEAR(out[i], y[k] + static_cast<double>(mix[i]) * (previous[k] - y[k]), 3e-6) << i;
  }
  EXPECT_EQ(out[2 * 19], 5.0f);
}

TEST_P(ElementwiseTest, SiluMulEqualsTheFormula) {
  std::vector<float> gate = Wave(41, 0.9f);
  gate[3] = -100.0f;
  gate[4] = 100.0f;
  gate[40] = -87.5f;
  const std::vector<float> up = Wave(41, 0.4f);
  std::vector<float> out(42, 5.0f);
  ActivateRow(Activation::kSilu, gate.data(), up.data(), 41, out.data());
  for (size_t i = 0; i < 41; ++i) {
    const double expected = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i];
    EXPECT_NEAR(out[i], expected, 2e-6 * (1e-6 + std::abs(expected))) << i;
  }
  EXPECT_EQ(out[41], 5.0f);
}

TEST_P(ElementwiseTest, OtherActivationsEqualTheirFormulas) {
  std::vector<float> x = Wave(41, 0.9f);
  x[2] = -20.0f;
  x[3] = 20.0f;
  x[4] = 0.0f;
  x[5] = -4.5f;
  const std::vector<float> up = Wave(41, 0.4f);
  const auto formula = [](Activation activation, double v) {
    if (activation == Activation::kGelu) return 0.5 * v * std::erfc(-v / std::sqrt(2.0));
    if (activation == Activation::kRelu2) return v > 0 ? v * v : 0.0;
    if (activation == Activation::kSigmoid) return 1 / (1 + std::exp(-v));
    if (activation == Activation::kTanh) return std::tanh(v);
    return 0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
  };
  for (const Activation activation : {Activation::kGelu, Activation::kGeluTanh, Activation::kRelu2,
                                      Activation::kSigmoid, Activation::kTanh}) {
    std::vector<float> out(42, 5.0f);
    ActivateRow(activation, x.data(), nullptr, 41, out.data());
    std::vector<float> gated(42, 5.0f);
    ActivateRow(activation, x.data(), up.data(), 41, gated.data());
    for (size_t i = 0; i < 41; ++i) {
      const double expected = formula(activation, x[i]);
      // The error of erf is absolute.
      EXPECT_NEAR(out[i], expected, 1e-6 * (0.3 + std::abs(expected)))
          << ActivationName(activation) << " of " << x[i];
      EXPECT_NEAR(gated[i], static_cast<double>(out[i]) * up[i], 1e-6 * std::abs(gated[i]));
    }
    EXPECT_EQ(out[41], 5.0f);
    EXPECT_EQ(gated[41], 5.0f);
  }
}

TEST_P(ElementwiseTest, UpdatesEqualTheFormula) {
  const std::vector<float> x = Wave(19, 0.4f);
  const std::vector<float> add_bias = Wave(19, 0.5f);
  const std::vector<float> add_scale = Wave(19, 0.6f);
  const std::vector<float> keep_bias = Wave(19, 0.7f);
  const std::vector<float> keep_scale = Wave(19, 0.8f);
  UpdateRow update;
  update.scale = 0.3f;
  update.keep = 1.2f;
  update.total = 0.9f;
  std::vector<float> out(20, 0.25f);
  update.Apply(x.data(), 19, out.data());
  for (size_t i = 0; i < 19; ++i) {
    EXPECT_NEAR(out[i], 0.9 * (1.2 * 0.25 + 0.3 * x[i]), 1e-6);
  }
  update.add_bias = add_bias.data();
  update.add_scale = add_scale.data();
  update.keep_bias = keep_bias.data();
  update.keep_scale = keep_scale.data();
  const std::vector<float> before = out;
  update.Apply(x.data(), 19, out.data());
  for (size_t i = 0; i < 19; ++i) {
    EXPECT_NEAR(out[i],
                0.9 * (1.2 * (before[i] + keep_bias[i]) * keep_scale[i] +
                       0.3 * (x[i] + add_bias[i]) * add_scale[i]),
                2e-6);
  }
  EXPECT_EQ(out[19], 0.25f);
  // With keep 0 what is there may be anything, the input itself too.
  update.keep = 0;
  std::vector<float> same = x;
  update.Apply(same.data(), 19, same.data());
  for (size_t i = 0; i < 19; ++i) {
    EXPECT_NEAR(same[i], 0.9 * 0.3 * (x[i] + add_bias[i]) * add_scale[i], 1e-6);
  }
}

TEST_P(ElementwiseTest, AddScaledEqualsTheFormula) {
  const std::vector<float> x = Wave(19, 0.4f);
  std::vector<float> out = Wave(20, 0.2f);
  const std::vector<float> before = out;
  AddScaledRow(x.data(), 0.3f, 19, out.data());
  for (size_t i = 0; i < 19; ++i) EXPECT_NEAR(out[i], before[i] + 0.3f * x[i], 1e-6f);
  EXPECT_EQ(out[19], before[19]);
}

ADDER_ON_EVERY_TARGET(ElementwiseTest);

std::vector<float> Choose(const Routing& routing, const std::vector<float>& bias,
                          std::vector<float> logits, int64_t top_k) {
  std::vector<float> scratch(logits.size());
  std::vector<float> out(static_cast<size_t>(2 * top_k));
  ChooseExperts(routing, bias.empty() ? nullptr : bias.data(), nullptr, logits.data(),
                static_cast<int64_t>(logits.size()), top_k, scratch.data(), out.data());
  return out;
}

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

TEST(ChooseExpertsTest, LargestFirstTiesToTheLowerIndex) {
  const std::vector<float> out = Choose(Routing{}, {}, {0.5f, 2.0f, -1.0f, 2.0f, 1.0f}, 3);
  EXPECT_EQ(out[3], 1.0f);
  EXPECT_EQ(out[4], 3.0f);
  EXPECT_EQ(out[5], 4.0f);
  const double sum = 2 + std::exp(-1.0);
  EXPECT_NEAR(out[0], 1 / sum, 1e-6);
  EXPECT_NEAR(out[1], 1 / sum, 1e-6);
  EXPECT_NEAR(out[2], std::exp(-1.0) / sum, 1e-6);
}

TEST(ChooseExpertsTest, SoftmaxOverAllKeepsItsWeights) {
  Routing routing;
  routing.normalize = false;
  routing.scale = 2;
  const std::vector<float> out = Choose(routing, {}, {0.5f, 2.0f, -1.0f, 1.0f}, 2);
  const double sum = std::exp(0.5) + std::exp(2.0) + std::exp(-1.0) + std::exp(1.0);
  EXPECT_EQ(out[2], 1.0f);
  EXPECT_EQ(out[3], 3.0f);
  EXPECT_NEAR(out[0], 2 * std::exp(2.0) / sum, 1e-6);
  EXPECT_NEAR(out[1], 2 * std::exp(1.0) / sum, 1e-6);
}

TEST(ChooseExpertsTest, TheBiasChoosesButDoesNotWeigh) {
  Routing routing;
  routing.scores = RouterScores::kSigmoid;
  routing.choice_bias = 0;
  routing.normalize_eps = 0.25f;
  const std::vector<float> out = Choose(routing, {0.5f, 0, 0, 0.4f}, {-1.0f, 2.0f, 1.0f, 0.0f}, 2);
  // Choice scores: 0.769, 0.881, 0.731, 0.9.
  EXPECT_EQ(out[2], 3.0f);
  EXPECT_EQ(out[3], 1.0f);
  const double sum = 0.5 + SigmoidOf(2) + 0.25;
  EXPECT_NEAR(out[0], 0.5 / sum, 1e-6);
  EXPECT_NEAR(out[1], SigmoidOf(2) / sum, 1e-6);
}

TEST(ChooseExpertsTest, OnlyTheBestGroupsAreChosenFrom) {
  Routing routing;
  routing.scores = RouterScores::kSigmoid;
  routing.groups = 3;
  routing.top_groups = 2;
  routing.normalize = false;
  // The largest logit lies in the worst group; groups count by their two best.
  const std::vector<float> logits = {0.1f, -1.0f, 0.3f, 3.0f, -9.0f, -9.0f, 0.2f, 2.0f, -5.0f};
  const std::vector<float> out = Choose(routing, {}, logits, 3);
  EXPECT_EQ(out[3], 7.0f);
  EXPECT_EQ(out[4], 2.0f);
  EXPECT_EQ(out[5], 6.0f);
  EXPECT_NEAR(out[0], SigmoidOf(2), 1e-6);
  EXPECT_NEAR(out[2], SigmoidOf(0.2), 1e-6);
}

TEST(ChooseExpertsTest, AGroupThatIsLeftOutHasNoExpertsHoweverBadTheOthersAre) {
  Routing routing;
  routing.scores = RouterScores::kSigmoid;
  routing.groups = 2;
  routing.normalize = false;
  // Biases make all choice scores negative; the second group is the better one.
  const std::vector<float> out = Choose(routing, {-2, -2, -1, -1.5}, {1, 1, 1, 1}, 2);
  EXPECT_EQ(out[2], 2.0f);
  EXPECT_EQ(out[3], 3.0f);
}

}  // namespace
}  // namespace adder
