// Experts of one token against sums in double, with few blocks (of many tiles) and many (which
// share a tile's columns), chosen by the common rule, by another, or before. Runs where there is a
// CUDA device of compute capability 9.0, which has enough shared memory.
#include "cuda/kernels/expert_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/kernels/activated_for_test.h"
#include "cuda/kernels/matrices_for_test.h"
#include "cuda/kernels/wgmma_linear.h"

namespace adder::cuda::test {
namespace {

constexpr int kExperts = 20;
constexpr int kTopK = 3;
constexpr int kHidden = 576;
constexpr int kWidth = 192;
constexpr int kSharedWidth = 320;

class ExpertSteps : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    if (!DeviceHasWgmma()) GTEST_SKIP() << "the kernels are of compute capability 9.0";
  }
};

std::vector<double> Product(const Matrices& matrices, int matrix, const std::vector<double>& x) {
  std::vector<double> sums;
  for (int row = 0; row < matrices.view.rows; ++row) {
    double sum = 0;
    for (int col = 0; col < matrices.view.cols; ++col) {
      sum += matrices.at(matrix, row, col) * x[static_cast<size_t>(col)];
    }
    sums.push_back(sum);
  }
  return sums;
}

// What an expert makes of the row: activation(gate) * up, or activation(up).
std::vector<double> Inner(const Matrices& up, int matrix, const std::vector<double>& x,
                          Activation activation) {
  std::vector<double> sums = Product(up, matrix, x);
  const size_t width = up.view.interleaved ? sums.size() / 2 : sums.size();
  for (size_t i = 0; i < width; ++i) {
    sums[i] = Activated(activation, sums[i]) * (up.view.interleaved ? sums[width + i] : 1);
  }
  sums.resize(width);
  return sums;
}

// Weights, then numbers.
std::vector<double> Choose(const std::vector<double>& logits, const std::vector<float>& bias,
                           const RouteParams& rule) {
  std::vector<double> scores = logits;
  std::vector<double> order = logits;
  if (rule.experts != 0) {
    for (size_t e = 0; e < logits.size(); ++e) {
      scores[e] = 1 / (1 + std::exp(-logits[e]));
      order[e] = scores[e] + bias[e];
    }
  }
  std::vector<double> weights;
  std::vector<double> numbers;
  double sum = 0;
  for (int j = 0; j < kTopK; ++j) {
    const size_t best =
        static_cast<size_t>(std::max_element(order.begin(), order.end()) - order.begin());
    order[best] = -INFINITY;
    numbers.push_back(static_cast<double>(best));
    weights.push_back(rule.experts != 0 ? scores[best] : std::exp(logits[best]));
    sum += weights.back();
  }
  for (double& weight : weights) weight *= (rule.experts != 0 ? rule.scale : 1) / sum;
  weights.insert(weights.end(), numbers.begin(), numbers.end());
  return weights;
}

TEST_P(ExpertSteps, GatesAndDown) {
  for (const bool gated : {false, true}) {
    const Activation activation = gated ? Activation::kSilu : Activation::kRelu2;
    const int times = gated ? 2 : 1;
    const Matrices up(GetParam(), kExperts, times * kWidth, kHidden, gated, 3);
    const Matrices shared_up(GetParam(), 1, times * kSharedWidth, kHidden, gated, 4);
    const Matrices down(GetParam(), kExperts, kHidden, kWidth, false, 5);
    const Matrices shared_down(GetParam(), 1, kHidden, kSharedWidth, false, 6);
    const Matrices router(GetParam(), 1, kExperts, kHidden, false, 7);
    Numbers numbers(9);
    const std::vector<float> input = numbers.Vector(kHidden, 0.2f);
    const std::vector<float> norm = numbers.Vector(kHidden, 0.02f, 0.03f);
    const std::vector<float> router_bias = numbers.Vector(kExperts, 0.5f);
    const std::vector<float> choice_bias = numbers.Vector(kExperts, 0.3f);
    const std::vector<float> residual = numbers.Vector(kHidden);
    const std::vector<float> shared_gate{0.7f};
    const DeviceArray<float> device_input(input), device_norm(norm), device_bias(router_bias),
        device_choice_bias(choice_bias), device_gate(shared_gate);

    double squares = 0;
    for (float x : input) squares += double{x} * x;
    const double factor = 1 / std::sqrt(squares / kHidden + 1e-3);
    std::vector<double> x;
    for (size_t i = 0; i < kHidden; ++i) x.push_back(double{input[i]} * norm[i] * factor);
    std::vector<double> logits = Product(router, 0, x);
    for (size_t e = 0; e < kExperts; ++e) logits[e] += router_bias[e];

    const std::vector<unsigned> nothing(20000, 0xffffffffu);
    const DeviceArray<unsigned> exchange(nothing);
    const DeviceArray<unsigned> arrivals(1);
    ASSERT_LE(ExpertExchangeWords(down.view), static_cast<int64_t>(nothing.size()));
    for (const int multiprocessors : {8, 9, 27, 52, 131, 132}) {
      const bool by_rule = multiprocessors % 2 == 1;
      ExpertParams p;
      p.linear.matrix = up.view;
      p.linear.input = device_input.data();
      p.linear.tokens = 1;
      p.linear.norm_weight = device_norm.data();
      p.linear.norm_eps = 1e-3f;
      p.linear.epilogue = gated ? LinearEpilogue::kSiluMul : LinearEpilogue::kRule;
      p.linear.rule.activates = !gated;
      p.linear.rule.activation = activation;
      const DeviceArray<float> activated(std::vector<float>(kTopK * kWidth, NAN));
      const DeviceArray<float> shared_activated(std::vector<float>(kSharedWidth, NAN));
      const DeviceArray<float> output(residual);
      p.linear.output = activated.data();
      p.top_k = kTopK;
      p.shared = shared_up.view;
      p.shared_output = shared_activated.data();
      if (by_rule) {
        p.route.experts = kExperts;
        p.route.top_k = kTopK;
        p.route.sigmoid = true;
        p.route.choice_bias = device_choice_bias.data();
        p.route.scale = 2.5f;
      }
      // Chosen by the launch, or before.
      const std::vector<double> chosen = Choose(logits, choice_bias, p.route);
      std::vector<float> before(chosen.begin(), chosen.end());
      if (multiprocessors != 52) {
        std::fill(before.begin(), before.end(), NAN);
        p.router = router.view;
        p.router_bias = device_bias.data();
      }
      const DeviceArray<float> routing(before);
      p.routing = p.chosen = routing.data();
      p.exchange = exchange.data();
      p.arrivals = arrivals.data();
      const LinearShape shape = OnDevice(false, multiprocessors);
      const Stream stream;
      ASSERT_TRUE(LaunchExpertGatesStep(p, shape, stream.get())) << multiprocessors;
      p.linear.matrix = down.view;
      p.linear.input = activated.data();
      p.linear.epilogue = LinearEpilogue::kAdd;
      p.linear.norm_weight = nullptr;
      p.linear.scale = 0.5f;
      p.linear.output = output.data();
      p.shared = shared_down.view;
      p.shared_input = shared_activated.data();
      if (by_rule) p.shared_gate = device_gate.data();
      if (multiprocessors == 132) {
        ASSERT_TRUE(LaunchExpertDownStep(p, shape, stream.get()));
      } else {
        LaunchExpertDown(p, shape, stream.get());
      }
      stream.Synchronize();
      EXPECT_EQ(exchange.Download(), nothing);
      EXPECT_EQ(arrivals.Download()[0], 0u);

      const std::vector<float> found_chosen = routing.Download();
      for (size_t i = 0; i < chosen.size(); ++i) {
        EXPECT_NEAR(found_chosen[i], chosen[i], 1e-3) << i << " of " << multiprocessors;
      }
      std::vector<double> expected(residual.begin(), residual.end());
      const auto add = [&](const std::vector<float>& found, size_t from, const Matrices& back,
                           int matrix, const std::vector<double>& inner, double weight) {
        std::vector<double> all(found.size(), 0);
        std::copy(inner.begin(), inner.end(), all.begin() + static_cast<std::ptrdiff_t>(from));
        EXPECT_LT(RelativeError(found, all, from, inner.size()), 5e-4)
            << "matrix " << matrix << ", " << multiprocessors << " multiprocessors";
        const std::vector<double> products = Product(back, matrix, inner);
        for (size_t row = 0; row < kHidden; ++row) expected[row] += 0.5 * weight * products[row];
      };
      for (size_t j = 0; j < kTopK; ++j) {
        const int expert = static_cast<int>(chosen[kTopK + j]);
        add(activated.Download(), j * kWidth, down, expert, Inner(up, expert, x, activation),
            chosen[j]);
      }
      add(shared_activated.Download(), 0, shared_down, 0, Inner(shared_up, 0, x, activation),
          by_rule ? 1 / (1 + std::exp(-double{shared_gate[0]})) : 1);
      EXPECT_LT(RelativeError(output.Download(), expected, 0, kHidden), 5e-4)
          << multiprocessors << " multiprocessors, gated " << gated;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Quantized, ExpertSteps, testing::ValuesIn(kFormats, kFormats + 7),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace adder::cuda::test
