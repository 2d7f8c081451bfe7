#include "cpu/rwkv7_kernel.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "cpu/simd_targets_for_test.h"
#include "cpu/wave_for_test.h"

namespace adder {
namespace {

class Rwkv7KernelTest : public OnEveryTarget {};

// Three heads; every input with a wave of its own.
struct Problem {
  Problem(int64_t head_dim, float size) {
    mixer.heads = 3;
    mixer.head_dim = head_dim;
    mixer.norm.eps = 0.01f;
    const int64_t inner = mixer.inner();
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i] =
          Wave(inner, 0.3f + 0.17f * static_cast<float>(i), 0.2f, i < 8 ? 1.4f * size : 0.9f);
    }
    token = {inputs[0].data(), inputs[1].data(), inputs[2].data(), inputs[3].data(),
             inputs[4].data(), inputs[5].data(), inputs[6].data(), inputs[7].data()};
    vectors = {inputs[8].data(), inputs[9].data(), inputs[10].data(), inputs[11].data(),
               inputs[12].data()};
    for (auto* values : {&decay, &read, &write, &answer, &value}) {
      values->assign(static_cast<size_t>(inner), 7.0f);
    }
    row = {decay.data(), read.data(), write.data(), answer.data(), value.data()};
  }

  Rwkv7 mixer;
  std::vector<std::vector<float>> inputs = std::vector<std::vector<float>>(13);
  Rwkv7Token token;
  Rwkv7Vectors vectors;
  std::vector<float> decay, read, write, answer, value;
  Rwkv7Row row;
};

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }

TEST_P(Rwkv7KernelTest, PreparationEqualsTheFormula) {
  for (int64_t head_dim : {1, 5, 16, 37}) {
    for (float size : {1.0f, 300.0f}) {
      for (bool mixes : {false, true}) {
        Problem problem(head_dim, size);
        if (!mixes) problem.token.value_mix = nullptr;
        PrepareRwkv7(problem.mixer, problem.vectors, problem.token, problem.row);
        const Rwkv7Token& t = problem.token;
        for (int64_t i = 0; i < problem.mixer.inner(); ++i) {
          const int64_t head = i / head_dim * head_dim;
          double squares = 0;
          for (int64_t j = head; j < head + head_dim; ++j) {
            squares += std::pow(static_cast<double>(t.k[j]) * problem.vectors.key_scale[j], 2);
          }
          const double kappa =
              static_cast<double>(t.k[i]) * problem.vectors.key_scale[i] / std::sqrt(squares);
          const double alpha = SigmoidOf(t.rate[i]);
          const double v = mixes ? t.v[i] + SigmoidOf(t.value_mix[i]) *
                                                (static_cast<double>(t.first_value[i]) - t.v[i])
                                 : t.v[i];
          const auto at = static_cast<size_t>(i);
          EXPECT_NEAR(problem.decay[at], std::exp(-std::exp(-0.5) * SigmoidOf(t.decay[i])), 1e-6);
          EXPECT_NEAR(problem.read[at], -kappa, 2e-6);
          EXPECT_NEAR(problem.answer[at], kappa * alpha, 2e-6);
          EXPECT_NEAR(problem.write[at], t.k[i] * (1 + (alpha - 1) * problem.vectors.key_rate[i]),
                      2e-6 * size);
          EXPECT_NEAR(problem.value[at], v, 2e-6 * size);
        }
      }
    }
  }
}

TEST_P(Rwkv7KernelTest, FinishEqualsTheFormula) {
  for (int64_t head_dim : {1, 5, 16, 37}) {
    Problem problem(head_dim, 1);
    PrepareRwkv7(problem.mixer, problem.vectors, problem.token, problem.row);
    const std::vector<float> y = Wave(head_dim, 0.77f, 1.0f, 2.0f);
    std::vector<float> out = y;
    out.push_back(5.0f);
    FinishRwkv7(problem.mixer, problem.vectors, problem.token, problem.row, 1, out.data());
    double mean = 0;
    double own = 0;
    for (int64_t i = 0; i < head_dim; ++i) {
      mean += y[i] / static_cast<double>(head_dim);
      own += static_cast<double>(problem.token.r[head_dim + i]) * problem.write[head_dim + i] *
             problem.vectors.bonus[head_dim + i];
    }
    double squares = 0;
    for (float value : y) squares += (value - mean) * (value - mean);
    for (int64_t i = 0; i < head_dim; ++i) {
      const int64_t at = head_dim + i;
      const double normed = (y[i] - mean) /
                                std::sqrt(squares / static_cast<double>(head_dim) + 0.01) *
                                problem.vectors.norm_weight[at] +
                            problem.vectors.norm_bias[at];
      EXPECT_NEAR(out[i], (normed + own * problem.value[at]) * problem.token.gate[at], 2e-5);
    }
    EXPECT_EQ(out[head_dim], 5.0f);
  }
}

// A key of zeros has no direction.
TEST_P(Rwkv7KernelTest, KeysOfZerosStayFinite) {
  Problem problem(6, 1);
  const std::vector<float> zeros(18);
  problem.token.k = zeros.data();
  PrepareRwkv7(problem.mixer, problem.vectors, problem.token, problem.row);
  for (float value : problem.read) EXPECT_EQ(value, 0.0f);
  for (float value : problem.write) EXPECT_EQ(value, 0.0f);
}

ADDER_ON_EVERY_TARGET(Rwkv7KernelTest);

}  // namespace
}  // namespace adder
