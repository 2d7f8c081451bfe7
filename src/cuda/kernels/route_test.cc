// The choice of experts against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/route.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

class RouteKernels : public KernelTest {
 protected:
  static constexpr int kTokens = 5;

  // Expert numbers, -1 for idle choices, then weights.
  static std::pair<std::vector<int>, std::vector<double>> Reference(
      const RouteParams& p, const float* logits, const std::vector<float>& bias,
      const std::vector<float>& scales) {
    const auto count = static_cast<size_t>(p.experts);
    std::vector<double> scores;
    double all = 0;
    for (size_t e = 0; e < count; ++e) all += std::exp(static_cast<double>(logits[e]));
    for (size_t e = 0; e < count; ++e) {
      const double x = logits[e];
      scores.push_back(p.sigmoid ? 1 / (1 + std::exp(-x)) : std::exp(x) / all);
    }
    std::vector<double> choices = scores;
    for (size_t e = 0; e < bias.size(); ++e) choices[e] += bias[e];
    const auto largest = [](const std::vector<double>& values, int best) {
      std::vector<int> order(values.size());
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return values[static_cast<size_t>(a)] > values[static_cast<size_t>(b)];
      });
      order.resize(static_cast<size_t>(best));
      return order;
    };
    if (p.top_groups < p.groups) {
      const size_t size = count / static_cast<size_t>(p.groups);
      std::vector<double> of_groups;
      for (size_t begin = 0; begin < count; begin += size) {
        std::vector<double> group(choices.begin() + static_cast<std::ptrdiff_t>(begin),
                                  choices.begin() + static_cast<std::ptrdiff_t>(begin + size));
        std::sort(group.rbegin(), group.rend());
        of_groups.push_back(group[0] + group[1]);
      }
      std::vector<bool> kept(of_groups.size());
      for (int group : largest(of_groups, p.top_groups)) kept[static_cast<size_t>(group)] = true;
      for (size_t e = 0; e < count; ++e) {
        if (!kept[e / size]) choices[e] = -INFINITY;
      }
    }
    std::vector<int> chosen = largest(choices, p.top_k);
    double sum = p.normalize_eps;
    for (int e : chosen) sum += scores[static_cast<size_t>(e)];
    std::vector<double> weights;
    for (int& e : chosen) {
      const bool idle = e >= p.experts - p.idle;
      const double score = idle ? 0 : scores[static_cast<size_t>(e)];
      const double scale = scales.empty() ? p.scale : p.scale * scales[static_cast<size_t>(e)];
      weights.push_back(scale * score / (p.normalizes ? sum : 1));
      if (idle) e = -1;
    }
    return {chosen, weights};
  }

  static void Check(RouteParams p, bool has_bias, std::vector<float> logits = {},
                    bool has_scales = false) {
    Numbers numbers(static_cast<uint64_t>(p.experts));
    p.tokens = kTokens;
    p.logits_stride = p.experts + 3;
    p.output_stride = 2 * p.top_k + 2;
    if (logits.empty()) {
      logits = numbers.Vector(static_cast<size_t>(kTokens * p.logits_stride), 3);
    }
    const std::vector<float> bias =
        has_bias ? numbers.Vector(static_cast<size_t>(p.experts), 0.4f) : std::vector<float>();
    const std::vector<float> scales =
        has_scales ? numbers.Vector(static_cast<size_t>(p.experts), 0.5f, 1) : std::vector<float>();
    const DeviceArray<float> device_logits(logits), device_bias(has_bias ? bias : logits),
        device_scales(has_scales ? scales : logits);
    const DeviceArray<float> output(static_cast<size_t>(kTokens * p.output_stride));
    p.logits = device_logits.data();
    if (has_bias) p.choice_bias = device_bias.data();
    if (has_scales) p.expert_scale = device_scales.data();
    p.output = output.data();
    const DeviceArray<int> device_chosen(static_cast<size_t>(kTokens * p.top_k));
    p.chosen = device_chosen.data();
    const Stream stream;
    LaunchRoute(p, stream.get());
    stream.Synchronize();
    const std::vector<float> found = output.Download();
    const std::vector<int> numbers_found = device_chosen.Download();
    for (int token = 0; token < kTokens; ++token) {
      const auto [chosen, weights] =
          Reference(p, logits.data() + token * p.logits_stride, bias, scales);
      const float* row = found.data() + token * p.output_stride;
      for (int j = 0; j < p.top_k; ++j) {
        const int expert = chosen[static_cast<size_t>(j)];
        EXPECT_EQ(numbers_found[static_cast<size_t>(token * p.top_k + j)], expert);
        EXPECT_EQ(row[p.top_k + j], static_cast<float>(std::max(expert, 0)))
            << "token " << token << " choice " << j << " of " << p.experts << " experts";
        EXPECT_NEAR(row[j], weights[static_cast<size_t>(j)], 2e-6 * p.scale)
            << "token " << token << " choice " << j << " of " << p.experts << " experts";
      }
    }
  }
};

TEST_F(RouteKernels, SoftmaxWithoutNormalisation) {
  for (const int experts : {6, 64, 200}) {
    RouteParams p;
    p.experts = experts;
    p.top_k = 4;
    p.normalizes = false;
    p.scale = 1.5f;
    Check(p, false);
  }
}

TEST_F(RouteKernels, TheBiasChoosesAndDoesNotWeigh) {
  for (const bool sigmoid : {false, true}) {
    RouteParams p;
    p.experts = 72;
    p.top_k = 6;
    p.sigmoid = sigmoid;
    p.normalize_eps = 0.25f;
    p.scale = 2.5f;
    Check(p, true);
  }
}

TEST_F(RouteKernels, ExpertsHaveScalesOfTheirOwn) {
  RouteParams p;
  p.experts = 40;
  p.top_k = 5;
  Check(p, false, {}, true);
  p.normalizes = false;
  Check(p, true, {}, true);
}

TEST_F(RouteKernels, IdleChoicesAreNoExperts) {
  for (const bool sigmoid : {false, true}) {
    RouteParams p;
    p.experts = 12;
    p.idle = 5;
    p.top_k = 4;
    p.sigmoid = sigmoid;
    p.normalizes = sigmoid;
    Check(p, true, {}, true);
  }
}

TEST_F(RouteKernels, GroupsLimitTheChoice) {
  for (const int groups : {4, 8, 40}) {
    RouteParams p;
    p.experts = 160;
    p.top_k = 7;
    p.sigmoid = true;
    p.groups = groups;
    p.top_groups = groups / 2;
    Check(p, true);
    Check(p, false);
  }
}

TEST_F(RouteKernels, TheFirstOfEqualsIsChosen) {
  RouteParams p;
  p.experts = 50;
  p.top_k = 5;
  p.sigmoid = true;
  std::vector<float> logits(static_cast<size_t>(kTokens * 53));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i % 4);
  Check(p, false, logits);
}

}  // namespace
}  // namespace adder::cuda::test
