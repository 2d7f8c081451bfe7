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

TEST_P(ElementwiseTest, SiluMulEqualsTheFormula) {
  std::vector<float> gate = Wave(41, 0.9f);
  gate[3] = -100.0f;
  gate[4] = 100.0f;
  gate[40] = -87.5f;
  const std::vector<float> up = Wave(41, 0.4f);
  std::vector<float> out(42, 5.0f);
  SiluMulRow(gate.data(), up.data(), 41, out.data());
  for (size_t i = 0; i < 41; ++i) {
    const double expected = gate[i] / (1.0 + std::exp(-static_cast<double>(gate[i]))) * up[i];
    EXPECT_NEAR(out[i], expected, 2e-6 * (1e-6 + std::abs(expected))) << i;
  }
  EXPECT_EQ(out[41], 5.0f);
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

TEST(ChooseExpertsTest, LargestFirstTiesToTheLowerIndex) {
  const std::vector<float> scores = {0.5f, 2.0f, -1.0f, 2.0f, 1.0f};
  std::vector<float> out(6);
  ChooseExperts(scores.data(), 5, 3, out.data());
  EXPECT_EQ(out[3], 1.0f);
  EXPECT_EQ(out[4], 3.0f);
  EXPECT_EQ(out[5], 4.0f);
  const double sum = 2 + std::exp(-1.0);
  EXPECT_NEAR(out[0], 1 / sum, 1e-6);
  EXPECT_NEAR(out[1], 1 / sum, 1e-6);
  EXPECT_NEAR(out[2], std::exp(-1.0) / sum, 1e-6);
}

}  // namespace
}  // namespace adder
