// The matrix kernels' results by a rule (RowRule) against sums in double, for every weight format,
// from one token to many. Runs where there is a CUDA device.
#include <gtest/gtest.h>

#include "cuda/kernels/activated_for_test.h"
#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/few_linear.h"
#include "cuda/kernels/matrices_for_test.h"

namespace adder::cuda::test {
namespace {

class LinearRules : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
  }

  struct Case {
    bool gated = false;
    bool activates = false;
    Activation activation = Activation::kSilu;
    bool adds = false;
    bool has_factors = false;
  };

  static void Check(const Case& rule, int rows, int cols, int tokens, bool f32,
                    int multiprocessors = 132) {
    const Matrices matrices(GetParam(), 1, rows, cols, rule.gated, 31);
    const int width = rule.gated ? rows / 2 : rows;
    const int stride = (cols + 3) / 4 * 4;
    const int output_stride = (width + 3) / 4 * 4 + 4;
    Numbers numbers(13);
    const std::vector<float> input = numbers.Vector(static_cast<size_t>(tokens * stride), 0.7f);
    const std::vector<float> norm = numbers.Vector(static_cast<size_t>(stride), 0.1f, 0.2f);
    const std::vector<float> bias = numbers.Vector(static_cast<size_t>(rows), 1, 0.5f);
    const std::vector<float> factors = numbers.Vector(static_cast<size_t>(rows), 1, 0.25f);
    const std::vector<float> before = numbers.Vector(static_cast<size_t>(tokens * output_stride));
    const DeviceArray<float> device_input(input), device_norm(norm), device_bias(bias),
        device_factors(factors), output(before);
    LinearParams p;
    p.matrix = matrices.view;
    p.input = device_input.data();
    p.input_stride = stride;
    p.tokens = tokens;
    p.norm_weight = device_norm.data();
    p.norm_eps = 1e-3f;
    p.bias = device_bias.data();
    p.epilogue = LinearEpilogue::kRule;
    if (rule.has_factors) p.rule.factors = device_factors.data();
    p.rule.activates = rule.activates;
    p.rule.activation = rule.activation;
    p.rule.adds = rule.adds;
    p.scale = rule.gated ? 1.0f : 0.75f;
    p.output = output.data();
    p.output_stride = output_stride;
    const Stream stream;
    const LinearShape spread = OnDevice(f32, multiprocessors);
    const int rounded_stride = (cols + 7) / 8 * 8;
    const DeviceArray<uint16_t> rounded(
        std::vector<uint16_t>(static_cast<size_t>((tokens + 127) / 128 * 128 * rounded_stride), 0));
    const bool reads_rounded = ReadsRounded(spread, tokens);
    if (reads_rounded) {
      LaunchRound(p.input, stride, nullptr, tokens, cols, rounded.data(), rounded_stride,
                  stream.get());
      p.rounded_input = rounded.data();
      p.rounded_input_stride = rounded_stride;
    }
    LaunchLinear(p, spread, stream.get());
    stream.Synchronize();
    const std::vector<float> found = output.Download();

    for (int token = 0; token < tokens; ++token) {
      const float* x = input.data() + static_cast<size_t>(token * stride);
      double squares = 0;
      for (int col = 0; col < cols; ++col) squares += double{x[col]} * x[col];
      const double factor = 1 / std::sqrt(squares / cols + 1e-3);
      const auto value = [&](int row) {
        const auto index = static_cast<size_t>(row);
        double sum = 0;
        for (int col = 0; col < cols; ++col) {
          sum += matrices.at(0, row, col) * x[col] * norm[static_cast<size_t>(col)] * factor;
        }
        return (rule.has_factors ? factors[index] : 1) * sum + bias[index];
      };
      const auto from = static_cast<size_t>(token * output_stride);
      std::vector<double> expected(before.begin(), before.end());
      for (int i = 0; i < width; ++i) {
        double y = value(i);
        if (rule.gated || rule.activates) y = Activated(rule.activation, y);
        if (rule.gated) y *= value(width + i);
        const size_t index = from + static_cast<size_t>(i);
        expected[index] = double{p.scale} * y + (rule.adds ? before[index] : 0.0f);
      }
      // More than a few tokens are rounded to bf16, as are weights.
      const double tolerance = f32 ? 1e-5 : tokens <= kMostFewTokens ? 5e-4 : 3e-2;
      EXPECT_LT(RelativeError(found, expected, from, static_cast<size_t>(width)), tolerance)
          << rows << " x " << cols << ", token " << token << " of " << tokens
          << (f32 ? ", f32" : "") << ", " << ActivationName(rule.activation)
          << (rule.gated ? ", gated" : "");
      for (size_t i = from + static_cast<size_t>(width);
           i < from + static_cast<size_t>(output_stride); ++i) {
        EXPECT_EQ(found[i], before[i]);
      }
    }
  }

  // Few and many rows (the latter more than one multiprocessor has room for), few and many columns.
  static void Check(const Case& rule) {
    for (int tokens : {1, 2, 7, 40}) Check(rule, 48, 256, tokens, false);
    for (int tokens : {1, 3}) Check(rule, 48, 256, tokens, true);
    for (int tokens : {1, 5}) Check(rule, 900, 192, tokens, false, /*multiprocessors=*/1);
    Check(rule, 16, 5120, 1, false);
  }
};

TEST_P(LinearRules, FactorsOfRows) {
  Check({false, false, Activation::kSilu, false, true});
  Check({false, false, Activation::kSilu, true, true});
}

TEST_P(LinearRules, Activations) {
  Check({false, true, Activation::kRelu2, false, false});
  Check({false, true, Activation::kTanh, false, true});
  Check({false, true, Activation::kSigmoid, false, false});
}

TEST_P(LinearRules, GatedProducts) {
  Check({true, true, Activation::kSilu, false, true});
  Check({true, true, Activation::kGelu, false, false});
  Check({true, true, Activation::kGeluTanh, false, true});
}

// Experts without a gate, and one that every token takes in the same launch.
TEST_P(LinearRules, Experts) {
  constexpr int kCount = 5;
  constexpr int kTopK = 3;
  constexpr int kHidden = 192;
  constexpr int kWidth = 72;
  constexpr int kSharedWidth = 130;
  const Matrices up(GetParam(), kCount, kWidth, kHidden, false, 3);
  const Matrices shared(GetParam(), 1, kSharedWidth, kHidden, false, 4);
  for (const auto& [tokens, f32] : {std::pair(1, false), std::pair(3, false), std::pair(2, true)}) {
    Numbers numbers(9);
    const std::vector<float> input = numbers.Vector(static_cast<size_t>(tokens * kHidden), 1.5f);
    std::vector<float> routing;
    for (int token = 0; token < tokens; ++token) {
      for (float weight : {0.5f, 0.3f, 0.2f}) routing.push_back(weight);
      for (int j = 0; j < kTopK; ++j) {
        routing.push_back(static_cast<float>((4 + token + 3 * j) % kCount));
      }
    }
    const DeviceArray<float> device_routing(routing), device_input(input);
    const DeviceArray<float> activated(
        std::vector<float>(static_cast<size_t>(tokens * kTopK * kWidth), NAN));
    const DeviceArray<float> shared_activated(
        std::vector<float>(static_cast<size_t>(tokens * kSharedWidth), NAN));
    ExpertParams p;
    p.linear.matrix = up.view;
    p.linear.input = device_input.data();
    p.linear.input_stride = kHidden;
    p.linear.tokens = tokens;
    p.linear.epilogue = LinearEpilogue::kRule;
    p.linear.rule.activates = true;
    p.linear.rule.activation = Activation::kRelu2;
    p.linear.output = activated.data();
    p.linear.output_stride = kTopK * kWidth;
    p.routing = device_routing.data();
    p.routing_stride = 2 * kTopK;
    p.top_k = kTopK;
    if (!f32) {
      ASSERT_TRUE(CanShareLaunch(Experts::kGateUp, up.view, shared.view));
      p.shared = shared.view;
      p.shared_output = shared_activated.data();
      p.shared_output_stride = kSharedWidth;
    }
    const Stream stream;
    LaunchExpertGateUp(p, OnDevice(f32), stream.get());
    stream.Synchronize();
    const auto compare = [&](const std::vector<float>& found, const Matrices& matrices, int matrix,
                             const float* x, size_t from, int width) {
      std::vector<double> expected(found.size(), 0);
      for (int i = 0; i < width; ++i) {
        double sum = 0;
        for (int col = 0; col < kHidden; ++col) sum += matrices.at(matrix, i, col) * x[col];
        expected[from + static_cast<size_t>(i)] = Activated(Activation::kRelu2, sum);
      }
      EXPECT_LT(RelativeError(found, expected, from, static_cast<size_t>(width)), 5e-4)
          << "matrix " << matrix << " of " << width << " rows, " << tokens << " tokens";
    };
    const std::vector<float> found = activated.Download();
    const std::vector<float> found_shared = shared_activated.Download();
    for (int token = 0; token < tokens; ++token) {
      const float* x = input.data() + token * kHidden;
      for (int j = 0; j < kTopK; ++j) {
        compare(found, up,
                static_cast<int>(routing[static_cast<size_t>(token * 2 * kTopK + kTopK + j)]), x,
                static_cast<size_t>((token * kTopK + j) * kWidth), kWidth);
      }
      if (f32) continue;
      compare(found_shared, shared, 0, x, static_cast<size_t>(token * kSharedWidth), kSharedWidth);
    }
  }
}

// Logits of one token by sums in double; the choice among them by the kernel that only chooses.
TEST_P(LinearRules, RouterInOneLaunch) {
  constexpr int kCols = 320;
  for (const int experts : {20, 300}) {
    const Matrices matrix(GetParam(), 1, experts, kCols, false, 5);
    Numbers numbers(17);
    const std::vector<float> input = numbers.Vector(kCols, 0.1f);
    const std::vector<float> norm = numbers.Vector(kCols, 0.1f, 0.2f);
    const std::vector<float> bias = numbers.Vector(static_cast<size_t>(experts), 0.5f);
    const DeviceArray<float> device_input(input), device_norm(norm), device_bias(bias);
    const DeviceArray<float> logits(static_cast<size_t>(experts));
    const DeviceArray<unsigned> arrivals(1);
    for (const bool sigmoid : {false, true}) {
      RouteParams route;
      route.experts = experts;
      route.top_k = 6;
      route.sigmoid = sigmoid;
      route.choice_bias = sigmoid ? device_bias.data() : nullptr;
      route.groups = 4;
      route.top_groups = sigmoid ? 2 : 4;
      route.normalizes = sigmoid;
      route.scale = 2.5f;
      route.tokens = 1;
      route.logits = logits.data();
      route.logits_stride = experts;
      route.output_stride = 12;
      const DeviceArray<float> found(12), expected(12);
      LinearParams p;
      p.matrix = matrix.view;
      p.input = device_input.data();
      p.input_stride = kCols;
      p.tokens = 1;
      p.norm_weight = device_norm.data();
      p.norm_eps = 1e-3f;
      p.bias = device_bias.data();
      p.output = found.data();
      p.output_stride = 12;
      p.scores = logits.data();
      p.arrivals = arrivals.data();
      const Stream stream;
      LaunchRouterByRule(p, route, OnDevice(false), stream.get());
      route.output = expected.data();
      LaunchRoute(route, stream.get());
      stream.Synchronize();
      EXPECT_EQ(found.Download(), expected.Download());
      EXPECT_EQ(arrivals.Download()[0], 0u);
      double squares = 0;
      for (float x : input) squares += double{x} * x;
      std::vector<double> sums;
      for (int e = 0; e < experts; ++e) {
        double sum = 0;
        for (int col = 0; col < kCols; ++col) {
          const auto c = static_cast<size_t>(col);
          sum += matrix.at(0, e, col) * input[c] * norm[c];
        }
        sums.push_back(sum / std::sqrt(squares / kCols + 1e-3) + bias[static_cast<size_t>(e)]);
      }
      EXPECT_LT(RelativeError(logits.Download(), sums, 0, sums.size()), 5e-4);
    }
  }
}

// Two matrices that read one row, with rows of their own factors, biases and scales.
TEST_P(LinearRules, PairInOneLaunch) {
  constexpr int kCols = 320;
  constexpr int kRows[] = {88, 40};
  const Matrices first(GetParam(), 1, kRows[0], kCols, false, 51);
  const Matrices second(GetParam(), 1, kRows[1], kCols, false, 52);
  ASSERT_TRUE(CanPair(first.view, second.view, OnDevice(false)));
  Numbers numbers(53);
  const std::vector<float> input = numbers.Vector(kCols), norm = numbers.Vector(kCols, 0.3f, 0.2f);
  const std::vector<float> factors = numbers.Vector(88, 1, 0.5f), bias = numbers.Vector(88);
  const DeviceArray<float> device_input(input), device_norm(norm), device_factors(factors),
      device_bias(bias), first_output(size_t{88}), second_output(size_t{40});
  LinearParams p;
  p.matrix = first.view;
  p.input = device_input.data();
  p.input_stride = kCols;
  p.tokens = 1;
  p.norm_weight = device_norm.data();
  p.norm_eps = 1e-3f;
  p.rule.factors = device_factors.data();
  p.scale = 0.5f;
  p.output = first_output.data();
  p.output_stride = kRows[0];
  LinearParams q = p;
  q.matrix = second.view;
  q.rule.factors = nullptr;
  q.bias = device_bias.data();
  q.scale = -2;
  q.output = second_output.data();
  q.output_stride = kRows[1];
  const Stream stream;
  LaunchLinearPair(p, q, OnDevice(false), stream.get());
  stream.Synchronize();
  double squares = 0;
  for (float x : input) squares += double{x} * x;
  const double factor = 1 / std::sqrt(squares / kCols + 1e-3);
  for (const bool of_second : {false, true}) {
    std::vector<double> expected;
    for (int row = 0; row < kRows[of_second ? 1 : 0]; ++row) {
      double sum = 0;
      for (int col = 0; col < kCols; ++col) {
        const auto c = static_cast<size_t>(col);
        sum += (of_second ? second : first).at(0, row, col) * input[c] * norm[c] * factor;
      }
      const auto r = static_cast<size_t>(row);
      expected.push_back(of_second ? -2 * (sum + bias[r]) : 0.5 * factors[r] * sum);
    }
    EXPECT_LT(RelativeError((of_second ? second_output : first_output).Download(), expected, 0,
                            expected.size()),
              5e-4)
        << (of_second ? "second" : "first");
  }
}

// A matrix that reads what a convolution with gates makes of one token.
TEST_P(LinearRules, ConvolutionInTheSameLaunch) {
  constexpr int kChannels = 320;
  constexpr int kTaps = 3;
  constexpr int kRows = 40;
  constexpr int kPosition = 7;
  constexpr int kOffset = 12;
  const Matrices matrix(GetParam(), 1, kRows, kChannels, false, 61);
  Numbers numbers(62);
  const std::vector<float> projected = numbers.Vector(3 * kChannels),
                           weight = numbers.Vector(kTaps * kChannels),
                           bias = numbers.Vector(kChannels), residual = numbers.Vector(kRows),
                           slot = numbers.Vector(kOffset + kTaps * kChannels);
  const DeviceArray<float> device_projected(projected), device_weight(weight), device_bias(bias),
      output(residual), device_slot(slot);
  const DeviceArray<SequenceRun> runs(
      std::vector<SequenceRun>{{device_slot.data(), nullptr, kPosition, 0, 1, 0}});
  CausalConvParams conv;
  conv.channels = kChannels;
  conv.d_conv = kTaps;
  conv.weight = device_weight.data();
  conv.bias = device_bias.data();
  conv.conv_offset = kOffset;
  conv.gate_before = 0;
  conv.gate_after = kChannels;
  conv.x = 2 * kChannels;
  conv.runs = runs.data();
  conv.run_count = 1;
  conv.input = device_projected.data();
  conv.input_stride = 3 * kChannels;
  ASSERT_TRUE(CanConvolve(matrix.view, conv, OnDevice(false)));
  LinearParams p;
  p.matrix = matrix.view;
  p.tokens = 1;
  p.epilogue = LinearEpilogue::kAdd;
  p.scale = 0.5f;
  p.output = output.data();
  p.output_stride = kRows;
  const Stream stream;
  LaunchConvolvedLinear(p, conv, OnDevice(false), stream.get());
  stream.Synchronize();
  std::vector<double> convolved;
  std::vector<float> expected_slot = slot;
  for (size_t c = 0; c < kChannels; ++c) {
    const float newest = projected[c] * projected[2 * kChannels + c];
    expected_slot[kOffset + kPosition % kTaps * kChannels + c] = newest;
    double sum = bias[c] + double{weight[2 * kChannels + c]} * newest;
    for (int back = 1; back < kTaps; ++back) {
      const auto row = static_cast<size_t>((kPosition - back) % kTaps);
      sum += double{weight[static_cast<size_t>(kTaps - 1 - back) * kChannels + c]} *
             slot[kOffset + row * kChannels + c];
    }
    convolved.push_back(sum * projected[kChannels + c]);
  }
  std::vector<double> expected;
  for (int row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int c = 0; c < kChannels; ++c) {
      sum += matrix.at(0, row, c) * convolved[static_cast<size_t>(c)];
    }
    expected.push_back(residual[static_cast<size_t>(row)] + 0.5 * sum);
  }
  EXPECT_LT(RelativeError(output.Download(), expected, 0, expected.size()), 5e-4);
  EXPECT_EQ(device_slot.Download(), expected_slot);
}

// The mean of the norm is taken over parts of the row.
TEST_P(LinearRules, NormInGroups) {
  constexpr int kCols = 768;
  constexpr int kRows = 40;
  constexpr int kGroups = 3;
  const Matrices matrix(GetParam(), 1, kRows, kCols, false, 71);
  if (!CanGroup(matrix.view, kGroups, OnDevice(false))) {
    EXPECT_EQ(GetParam().bits, 0);
    return;
  }
  Numbers numbers(72);
  std::vector<float> input = numbers.Vector(kCols);
  for (size_t i = 0; i < kCols / kGroups; ++i) input[i] *= 5;
  const std::vector<float> norm = numbers.Vector(kCols, 0.5f, 0.7f);
  const std::vector<float> residual = numbers.Vector(kRows);
  const DeviceArray<float> device_input(input), device_norm(norm), output(residual);
  LinearParams p;
  p.matrix = matrix.view;
  p.input = device_input.data();
  p.input_stride = kCols;
  p.tokens = 1;
  p.norm_weight = device_norm.data();
  p.norm_eps = 1e-3f;
  p.epilogue = LinearEpilogue::kAdd;
  p.scale = 0.5f;
  p.output = output.data();
  p.output_stride = kRows;
  const Stream stream;
  LaunchGroupedLinear(p, kGroups, OnDevice(false), stream.get());
  stream.Synchronize();
  double squares[kGroups] = {};
  for (size_t c = 0; c < kCols; ++c) squares[c * kGroups / kCols] += double{input[c]} * input[c];
  std::vector<double> expected;
  for (int row = 0; row < kRows; ++row) {
    double sum = 0;
    for (int col = 0; col < kCols; ++col) {
      const auto c = static_cast<size_t>(col);
      sum += matrix.at(0, row, col) * input[c] * norm[c] /
             std::sqrt(squares[c * kGroups / kCols] * kGroups / kCols + 1e-3);
    }
    expected.push_back(residual[static_cast<size_t>(row)] + 0.5 * sum);
  }
  EXPECT_LT(RelativeError(output.Download(), expected, 0, expected.size()), 5e-4);
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearRules, testing::ValuesIn(kFormats),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace adder::cuda::test
