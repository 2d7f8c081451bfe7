#include "cpu/causal_conv.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/simd_targets_for_test.h"
#include "cpu/wave_for_test.h"

namespace adder {
namespace {

class CausalConvTest : public OnEveryTarget {};

// Rows hold three columns of channels in an unusual order, with gaps.
struct Model {
  Model(int64_t channels, int64_t d_conv, bool bias, bool gates, bool silu) : has_bias(bias) {
    op.channels = channels;
    op.d_conv = d_conv;
    op.silu = silu;
    op.x = channels + 1;
    if (gates) {
      op.gate_before = 2 * channels + 3;
      op.gate_after = 0;
    }
    weight = Wave(d_conv * channels, 0.37f, 0.1f, 0.6f);
    bias_values = Wave(channels, 0.9f, 0.2f, 0.3f);
  }
  int64_t width() const { return 3 * op.channels + 4; }
  CausalConvWeights weights() const {
    return {&op, weight.data(), has_bias ? bias_values.data() : nullptr};
  }

  CausalConvOp op;
  bool has_bias;
  std::vector<float> weight, bias_values;
};

struct Result {
  std::vector<float> output, window;
};

// Through the kernel, in pieces of the given sizes (then one by one), the channels in two parts.
Result RunKernel(const Model& model, const std::vector<float>& input, int64_t tokens,
                 std::vector<float> window, const std::vector<int64_t>& pieces) {
  const int64_t channels = model.op.channels;
  Result result{std::vector<float>(static_cast<size_t>(tokens * channels)), std::move(window)};
  int64_t done = 0;
  for (size_t i = 0; done < tokens; ++i) {
    const int64_t take = std::min(i < pieces.size() ? pieces[i] : 1, tokens - done);
    CausalConvRun run;
    run.tokens = take;
    run.input = input.data() + done * model.width();
    run.input_stride = model.width();
    run.window = result.window.data();
    run.output = result.output.data() + done * channels;
    run.output_stride = channels;
    const int64_t middle = channels / 2 / 16 * 16;
    CausalConv(model.weights(), run, middle, channels);
    CausalConv(model.weights(), run, 0, middle);
    done += take;
  }
  return result;
}

// Straight from the formula of program.h, in f64.
Result RunFormula(const Model& model, const std::vector<float>& input, int64_t tokens,
                  const std::vector<float>& window) {
  const CausalConvOp& op = model.op;
  const int64_t past = op.d_conv - 1;
  std::vector<double> entered(window.begin(), window.end());
  Result result{{}, window};
  for (int64_t t = 0; t < tokens; ++t) {
    const float* row = input.data() + t * model.width();
    for (int64_t c = 0; c < op.channels; ++c) {
      const double gate = op.gate_before < 0 ? 1.0 : row[op.gate_before + c];
      entered.push_back(gate * row[op.x + c]);
    }
    for (int64_t c = 0; c < op.channels; ++c) {
      double y = model.has_bias ? model.bias_values[static_cast<size_t>(c)] : 0.0;
      for (int64_t tap = 0; tap <= past; ++tap) {
        y += entered[static_cast<size_t>((t + tap) * op.channels + c)] *
             model.weight[static_cast<size_t>(tap * op.channels + c)];
      }
      if (op.silu) y /= 1 + std::exp(-y);
      if (op.gate_after >= 0) y *= row[op.gate_after + c];
      result.output.push_back(static_cast<float>(y));
    }
  }
  for (size_t i = 0; i < window.size(); ++i) {
    result.window[i] = static_cast<float>(entered[entered.size() - window.size() + i]);
  }
  return result;
}

void ExpectClose(const std::vector<float>& expected, const std::vector<float>& found) {
  ASSERT_EQ(expected.size(), found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_NEAR(expected[i], found[i], 2e-6 * (1 + std::abs(expected[i]))) << i;
  }
}

TEST_P(CausalConvTest, MatchesTheFormula) {
  for (const int64_t channels : {1, 13, 48, 67}) {
    for (const int64_t d_conv : {1, 3, 4}) {
      for (const int form : {0, 1, 2, 3}) {
        const Model model(channels, d_conv, form % 2 == 1, form<2, form> 0);
        for (const int64_t tokens : {1, 2, 9}) {
          const std::vector<float> input = Wave(tokens * model.width(), 0.71f, 0.05f, 1.5f);
          const std::vector<float> window = Wave((d_conv - 1) * channels, 1.3f, 0.1f, 0.8f);
          const Result expected = RunFormula(model, input, tokens, window);
          const Result found = RunKernel(model, input, tokens, window, {tokens});
          ExpectClose(expected.output, found.output);
          ExpectClose(expected.window, found.window);
        }
      }
    }
  }
}

TEST_P(CausalConvTest, CutsChangeNothing) {
  const Model model(67, 4, true, true, false);
  constexpr int64_t kTokens = 11;
  const std::vector<float> input = Wave(kTokens * model.width(), 0.71f, 0.05f, 1.5f);
  const std::vector<float> window = Wave(3 * 67, 1.3f, 0.1f, 0.8f);
  const Result whole = RunKernel(model, input, kTokens, window, {kTokens});
  for (const std::vector<int64_t>& pieces :
       std::vector<std::vector<int64_t>>{{}, {2}, {3, 4}, {7, 2, 1}}) {
    const Result cut = RunKernel(model, input, kTokens, window, pieces);
    EXPECT_EQ(whole.output, cut.output);
    EXPECT_EQ(whole.window, cut.window);
  }
}

ADDER_ON_EVERY_TARGET(CausalConvTest);

}  // namespace
}  // namespace adder
