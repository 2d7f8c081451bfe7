#include "cpu/mamba2_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/expect_close_for_test.h"
#include "cpu/simd_targets_for_test.h"
#include "cpu/wave_for_test.h"

namespace adder {
namespace {

class Mamba2KernelTest : public OnEveryTarget {};

struct Model {
  Model(int64_t heads, int64_t head_dim, int64_t d_state, int64_t groups, int64_t d_conv,
        bool bias) {
    mixer.heads = heads;
    mixer.head_dim = head_dim;
    mixer.d_state = d_state;
    mixer.groups = groups;
    mixer.d_conv = d_conv;
    mixer.dt_min = 0.01f;
    mixer.dt_max = 1.5f;
    conv_weight = Wave(d_conv * mixer.conv_channels(), 0.37f, 0.1f, 0.6f);
    conv_bias = Wave(mixer.conv_channels(), 0.9f, 0.0f, 0.3f);
    dt_bias = Wave(heads, 1.1f, -0.5f, 2.5f);
    a = Wave(heads, 0.8f, -1.2f, 1.0f);
    d = Wave(heads, 2.1f, 0.5f, 0.5f);
    weights = {&mixer,         conv_weight.data(), bias ? conv_bias.data() : nullptr,
               dt_bias.data(), a.data(),           d.data()};
  }
  int64_t window_size() const { return (mixer.d_conv - 1) * mixer.conv_channels(); }
  int64_t state_size() const { return mixer.heads * mixer.d_state * mixer.head_dim; }

  Mamba2 mixer;
  std::vector<float> conv_weight, conv_bias, dt_bias, a, d;
  Mamba2Weights weights;
};

struct Result {
  std::vector<float> output, window, state;
};

// Through the kernels, in pieces of the given sizes.
Result RunKernels(const Model& model, const std::vector<float>& projected, int64_t tokens,
                  Result start, const std::vector<int64_t>& pieces) {
  const Mamba2& m = model.mixer;
  const int64_t width = m.in_proj_rows() + 5;  // rows may be wider than used
  Result result = std::move(start);
  result.output.assign(static_cast<size_t>(tokens * m.inner()), 0.0f);
  int64_t done = 0;
  for (size_t i = 0; done < tokens; ++i) {
    const int64_t take = std::min(i < pieces.size() ? pieces[i] : 1, tokens - done);
    std::vector<float> convolved(static_cast<size_t>(take * m.conv_channels()));
    std::vector<float> steps(static_cast<size_t>(take * 2 * m.heads));
    Mamba2Run run;
    run.tokens = take;
    run.projected = projected.data() + done * width;
    run.projected_stride = width;
    run.dt = run.projected + m.inner() + m.conv_channels();
    run.dt_stride = width;
    run.window = result.window.data();
    run.state = result.state.data();
    run.convolved = convolved.data();
    run.steps = steps.data();
    run.output = result.output.data() + done * m.inner();
    run.output_stride = m.inner();
    const int64_t middle = m.conv_channels() / 2 / 16 * 16;
    Mamba2Conv(model.weights, run, middle, m.conv_channels());
    Mamba2Conv(model.weights, run, 0, middle);
    Mamba2Steps(model.weights, run, 0, take);
    Mamba2Scan(model.weights, run, m.heads / 2, m.heads);
    Mamba2Scan(model.weights, run, 0, m.heads / 2);
    done += take;
  }
  return result;
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

// Straight from the formulas of plan.h, in f64.
Result RunFormula(const Model& model, const std::vector<float>& projected, int64_t tokens,
                  Result result) {
  const Mamba2& m = model.mixer;
  const int64_t width = m.in_proj_rows() + 5;
  const int64_t channels = m.conv_channels();
  const int64_t past = m.d_conv - 1;
  std::vector<double> history(result.window.begin(), result.window.end());
  std::vector<double> state(result.state.begin(), result.state.end());
  result.output.assign(static_cast<size_t>(tokens * m.inner()), 0.0f);
  for (int64_t t = 0; t < tokens; ++t) {
    const float* z = projected.data() + t * width;
    const float* input = z + m.inner();
    const float* dt_input = input + channels;
    history.insert(history.end(), input, input + channels);
    std::vector<double> c(static_cast<size_t>(channels));
    for (int64_t i = 0; i < channels; ++i) {
      double sum = model.weights.conv_bias == nullptr ? 0.0 : model.conv_bias[i];
      for (int64_t tap = 0; tap <= past; ++tap) {
        sum += history[static_cast<size_t>((t + tap) * channels + i)] *
               model.conv_weight[static_cast<size_t>(tap * channels + i)];
      }
      c[static_cast<size_t>(i)] = Silu(sum);
    }
    for (int64_t head = 0; head < m.heads; ++head) {
      const int64_t group = head / (m.heads / m.groups);
      const double* b_row = c.data() + m.inner() + group * m.d_state;
      const double* c_row = b_row + m.groups * m.d_state;
      const double biased = static_cast<double>(dt_input[head]) + model.dt_bias[head];
      const double softplus = std::max(biased, 0.0) + std::log1p(std::exp(-std::abs(biased)));
      const double dt = std::clamp<double>(softplus, m.dt_min, m.dt_max);
      for (int64_t p = 0; p < m.head_dim; ++p) {
        const double x = c[static_cast<size_t>(head * m.head_dim + p)];
        double y = model.d[static_cast<size_t>(head)] * x;
        for (int64_t n = 0; n < m.d_state; ++n) {
          double& h = state[static_cast<size_t>((head * m.d_state + n) * m.head_dim + p)];
          h = std::exp(dt * model.a[static_cast<size_t>(head)]) * h + dt * b_row[n] * x;
          y += c_row[n] * h;
        }
        result.output[static_cast<size_t>(t * m.inner() + head * m.head_dim + p)] =
            static_cast<float>(y * Silu(z[head * m.head_dim + p]));
      }
    }
  }
  std::copy(history.end() - past * channels, history.end(), result.window.begin());
  std::copy(state.begin(), state.end(), result.state.begin());
  return result;
}

struct Case {
  int64_t heads, head_dim, d_state, groups, d_conv;
  bool bias;
};
constexpr Case kCases[] = {{4, 5, 16, 2, 2, true},   {2, 16, 20, 1, 3, false},
                           {6, 32, 128, 2, 4, true}, {2, 64, 16, 2, 4, true},
                           {3, 21, 7, 1, 4, false},  {2, 48, 16, 1, 1, true}};

TEST_P(Mamba2KernelTest, EqualsTheFormula) {
  for (const Case& c : kCases) {
    const Model model(c.heads, c.head_dim, c.d_state, c.groups, c.d_conv, c.bias);
    for (int64_t tokens : {1, 2, 3, 11}) {
      const std::vector<float> projected =
          Wave(tokens * (model.mixer.in_proj_rows() + 5), 0.61f, 0.1f, 1.5f);
      const Result start{{},
                         Wave(model.window_size(), 0.3f, 0.2f, 1.0f),
                         Wave(model.state_size(), 0.23f, 0.0f, 1.0f)};
      const Result expected = RunFormula(model, projected, tokens, start);
      const Result actual = RunKernels(model, projected, tokens, start, {tokens});
      ExpectClose(expected.output, actual.output);
      ExpectClose(expected.state, actual.state);
      EXPECT_EQ(expected.window, actual.window);
    }
  }
}

TEST_P(Mamba2KernelTest, BitsDoNotDependOnTheCut) {
  for (const Case& c : kCases) {
    const Model model(c.heads, c.head_dim, c.d_state, c.groups, c.d_conv, c.bias);
    const int64_t tokens = 23;
    const std::vector<float> projected =
        Wave(tokens * (model.mixer.in_proj_rows() + 5), 0.61f, 0.1f, 1.5f);
    const Result start{{},
                       Wave(model.window_size(), 0.3f, 0.2f, 1.0f),
                       Wave(model.state_size(), 0.23f, 0.0f, 1.0f)};
    const Result whole = RunKernels(model, projected, tokens, start, {tokens});
    for (const std::vector<int64_t>& pieces :
         std::vector<std::vector<int64_t>>{{}, {2, 5, 3}, {1, 4, 8, 9}, {22, 1}}) {
      const Result cut = RunKernels(model, projected, tokens, start, pieces);
      EXPECT_EQ(whole.output, cut.output);
      EXPECT_EQ(whole.state, cut.state);
      EXPECT_EQ(whole.window, cut.window);
    }
  }
}

// Steps of extreme size stay finite: softplus of large values, and SiLU far out on both sides.
TEST_P(Mamba2KernelTest, ExtremeInputsStayFinite) {
  Model model(2, 16, 16, 1, 4, true);
  model.mixer.dt_max = std::numeric_limits<float>::infinity();
  model.mixer.dt_min = 0;
  std::vector<float> projected(static_cast<size_t>(model.mixer.in_proj_rows() + 5));
  for (float size : {-200.0f, 200.0f, -3000.0f, 3000.0f}) {
    std::fill(projected.begin(), projected.end(), size);
    const Result start{{},
                       std::vector<float>(static_cast<size_t>(model.window_size())),
                       std::vector<float>(static_cast<size_t>(model.state_size()))};
    const Result result = RunKernels(model, projected, 1, start, {1});
    for (float value : result.output) EXPECT_TRUE(std::isfinite(value)) << size;
    for (float value : result.state) EXPECT_TRUE(std::isfinite(value)) << size;
    ExpectClose(RunFormula(model, projected, 1, start).output, result.output);
  }
}

ADDER_ON_EVERY_TARGET(Mamba2KernelTest);

}  // namespace
}  // namespace adder
