#include "cpu/head_mix_kernel.h"

#include <gtest/gtest.h>

#include <vector>

#include "cpu/simd_targets_for_test.h"
#include "cpu/wave_for_test.h"

namespace adder {
namespace {

class HeadMixKernelTest : public OnEveryTarget {};

// heads 4 over kv_heads 2, 3 taps and then 2.
struct Scene {
  explicit Scene(int64_t head_dim, int64_t tokens) {
    mixer.heads = 4;
    mixer.kv_heads = 2;
    mixer.head_dim = head_dim;
    mixer.mixing = HeadMixing{3, 2};
    channels = mixer.q_width() + mixer.kv_width();
    conv_weight = Wave(3 * channels, 0.9f, 0.05f, 0.6f);
    conv_bias = Wave(channels, 0.3f, 0.05f, 0.6f);
    group_weight = Wave(2 * head_dim * channels, 0.7f, 0.05f, 0.6f);
    group_bias = Wave(channels, 0.2f, 0.05f, 0.6f);
    input = Wave(tokens * mixer.qkv_rows(), 1.1f, 0.05f, 0.6f);
    window = Wave(3 * channels, 0.5f, 0.05f, 0.6f);
    delayed = Wave(mixer.kv_width() / 2, 0.4f, 0.05f, 0.6f);
    output.assign(input.size(), 9.0f);
  }
  HeadMixWeights Weights() const {
    return {&mixer, conv_weight.data(), conv_bias.data(), group_weight.data(), group_bias.data()};
  }
  // Tokens [begin, end).
  void Run(int64_t begin, int64_t end) {
    HeadMixRun run;
    run.tokens = end - begin;
    run.input = input.data() + begin * mixer.qkv_rows();
    run.output = output.data() + begin * mixer.qkv_rows();
    run.window = window.data();
    run.delayed = delayed.data();
    Scratch<float> scratch;
    for (int64_t head = 0; head < 6; ++head) MixHead(Weights(), run, head, scratch);
    DelayValues(mixer, run);
  }

  Attention mixer;
  int64_t channels = 0;
  std::vector<float> conv_weight, conv_bias, group_weight, group_bias;
  std::vector<float> input, output, window, delayed;
};

TEST_P(HeadMixKernelTest, EqualsTheFormula) {
  for (const int64_t head_dim : {5, 16, 21}) {
    constexpr int64_t kTokens = 7;
    Scene scene(head_dim, kTokens);
    const Scene before = scene;
    scene.Run(0, kTokens);
    const int64_t stride = scene.mixer.qkv_rows();
    const auto raw = [&](int64_t token, int64_t c) -> double {
      return token < 0 ? before.window[static_cast<size_t>((3 + token) * scene.channels + c)]
                       : before.input[static_cast<size_t>(token * stride + c)];
    };
    const auto convolved = [&](int64_t token, int64_t c) {
      double sum = scene.conv_bias[static_cast<size_t>(c)];
      for (int64_t t = 0; t < 3; ++t) {
        sum +=
            scene.conv_weight[static_cast<size_t>(t * scene.channels + c)] * raw(token - 2 + t, c);
      }
      return sum;
    };
    for (int64_t token = 0; token < kTokens; ++token) {
      const auto mean = [&](int64_t query, int64_t d) {
        return 0.5 *
               (raw(token, query * head_dim + d) + raw(token, (4 + query / 2) * head_dim + d));
      };
      for (int64_t c = 0; c < scene.channels; ++c) {
        const int64_t head = c / head_dim;
        const int64_t d = c % head_dim;
        double expected = scene.group_bias[static_cast<size_t>(c)];
        for (int64_t t = 0; t < 2; ++t) {
          for (int64_t j = 0; j < head_dim; ++j) {
            expected +=
                scene.group_weight[static_cast<size_t>((t * head_dim + j) * scene.channels + c)] *
                convolved(token - 1 + t, head * head_dim + j);
          }
        }
        const int64_t kv_head = head - 4;
        expected +=
            head < 4 ? mean(head, d) : (mean(2 * kv_head, d) + mean(2 * kv_head + 1, d)) / 2;
        ASSERT_NEAR(scene.output[static_cast<size_t>(token * stride + c)], expected, 2e-5)
            << "token " << token << ", channel " << c;
      }
      const int64_t half = scene.mixer.kv_width() / 2;
      for (int64_t i = 0; i < half; ++i) {
        const auto at = static_cast<size_t>(token * stride + scene.channels + i);
        EXPECT_EQ(scene.output[at], before.input[at]);
        const auto delayed = static_cast<size_t>(half);
        EXPECT_EQ(scene.output[at + delayed],
                  token == 0 ? before.delayed[static_cast<size_t>(i)]
                             : before.input[at + delayed - static_cast<size_t>(stride)]);
      }
    }
  }
}

TEST_P(HeadMixKernelTest, BitsDoNotDependOnWhereRunsAreCut) {
  Scene together(24, 9);
  Scene apart(24, 9);
  together.Run(0, 9);
  apart.Run(0, 1);
  apart.Run(1, 3);
  apart.Run(3, 8);
  apart.Run(8, 9);
  EXPECT_EQ(together.output, apart.output);
  EXPECT_EQ(together.window, apart.window);
  EXPECT_EQ(together.delayed, apart.delayed);
}

ADDER_ON_EVERY_TARGET(HeadMixKernelTest);

}  // namespace
}  // namespace adder
