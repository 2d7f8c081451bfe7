#include "cpu/mamba1_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/expect_close_for_test.h"
#include "cpu/simd_targets_for_test.h"
#include "cpu/wave_for_test.h"

namespace adder {
namespace {

class Mamba1KernelTest : public OnEveryTarget {};

// One mixer and the inputs of a run; rows of B and C, and of z, are wider than used.
struct Problem {
  Problem(int64_t inner_size, int64_t state_size, int64_t token_count)
      : inner(inner_size),
        d_state(state_size),
        tokens(token_count),
        bc_stride(2 * state_size + 3),
        z_stride(2 * inner_size + 1),
        a(Wave(state_size * inner_size, 0.83f, -1.2f, 1.0f)),
        d(Wave(inner_size, 2.1f, 0.5f, 0.5f)),
        x(Wave(token_count * inner_size, 0.61f, 0.1f, 1.5f)),
        dt(Wave(token_count * inner_size, 0.47f, -0.5f, 2.5f)),
        bc(Wave(token_count * bc_stride, 0.91f, 0.2f, 1.1f)),
        z(Wave(token_count * z_stride, 0.29f, 0.3f, 2.0f)),
        state(Wave(state_size * inner_size, 0.23f, 0.0f, 1.0f)) {}

  int64_t inner, d_state, tokens, bc_stride, z_stride;
  std::vector<float> a, d, x, dt, bc, z, state;
};

struct Result {
  std::vector<float> output, state;
};

// Through the kernel, tokens in pieces of the given sizes and channels in two blocks.
Result RunKernel(Problem problem, const std::vector<int64_t>& pieces) {
  Result result{std::vector<float>(static_cast<size_t>(problem.tokens * (problem.inner + 2))),
                problem.state};
  int64_t done = 0;
  for (size_t i = 0; done < problem.tokens; ++i) {
    Mamba1Run run;
    run.inner = problem.inner;
    run.d_state = problem.d_state;
    run.a = problem.a.data();
    run.d = problem.d.data();
    run.tokens = std::min(i < pieces.size() ? pieces[i] : 1, problem.tokens - done);
    run.x = problem.x.data() + done * problem.inner;
    run.dt = problem.dt.data() + done * problem.inner;
    run.b = problem.bc.data() + done * problem.bc_stride + 1;
    run.c = run.b + problem.d_state;
    run.bc_stride = problem.bc_stride;
    run.z = problem.z.data() + done * problem.z_stride + problem.inner;
    run.z_stride = problem.z_stride;
    run.state = result.state.data();
    run.output_stride = problem.inner + 2;
    run.output = result.output.data() + done * run.output_stride;
    const int64_t middle = problem.inner / 2 / 16 * 16;
    Mamba1Scan(run, middle, problem.inner);
    Mamba1Scan(run, 0, middle);
    done += run.tokens;
  }
  return result;
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

// Straight from the formulas of plan.h, in f64.
Result RunFormula(const Problem& problem) {
  const int64_t inner = problem.inner;
  Result result{std::vector<float>(static_cast<size_t>(problem.tokens * (inner + 2))),
                problem.state};
  for (int64_t channel = 0; channel < inner; ++channel) {
    std::vector<double> h;
    for (int64_t n = 0; n < problem.d_state; ++n) h.push_back(problem.state[n * inner + channel]);
    for (int64_t t = 0; t < problem.tokens; ++t) {
      const double raw = problem.dt[t * inner + channel];
      const double dt = std::max(raw, 0.0) + std::log1p(std::exp(-std::abs(raw)));
      const double x = problem.x[t * inner + channel];
      const float* b = problem.bc.data() + t * problem.bc_stride + 1;
      const float* c = b + problem.d_state;
      double y = problem.d[channel] * x;
      for (int64_t n = 0; n < problem.d_state; ++n) {
        h[n] = std::exp(dt * problem.a[n * inner + channel]) * h[n] + dt * b[n] * x;
        y += c[n] * h[n];
      }
      const double z = problem.z[t * problem.z_stride + inner + channel];
      result.output[t * (inner + 2) + channel] = static_cast<float>(y * Silu(z));
    }
    for (int64_t n = 0; n < problem.d_state; ++n) {
      result.state[n * inner + channel] = static_cast<float>(h[n]);
    }
  }
  return result;
}

struct Sizes {
  int64_t inner, d_state;
};
// Fewer channels than a vector, rests, and more state rows than a strip holds.
constexpr Sizes kSizes[] = {{5, 3}, {32, 16}, {77, 16}, {48, 37}, {130, 1}};

TEST_P(Mamba1KernelTest, EqualsTheFormula) {
  for (const Sizes& sizes : kSizes) {
    for (int64_t tokens : {1, 2, 11}) {
      const Problem problem(sizes.inner, sizes.d_state, tokens);
      const Result expected = RunFormula(problem);
      const Result actual = RunKernel(problem, {tokens});
      ExpectClose(expected.output, actual.output);
      ExpectClose(expected.state, actual.state);
    }
  }
}

TEST_P(Mamba1KernelTest, BitsDoNotDependOnTheCut) {
  for (const Sizes& sizes : kSizes) {
    const Problem problem(sizes.inner, sizes.d_state, 23);
    const Result whole = RunKernel(problem, {23});
    for (const std::vector<int64_t>& pieces :
         std::vector<std::vector<int64_t>>{{}, {2, 5, 3}, {1, 4, 8, 9}, {22, 1}}) {
      const Result cut = RunKernel(problem, pieces);
      EXPECT_EQ(whole.output, cut.output);
      EXPECT_EQ(whole.state, cut.state);
    }
  }
}

// Steps of extreme size stay finite: softplus of large values, and SiLU far out on both sides.
TEST_P(Mamba1KernelTest, ExtremeInputsStayFinite) {
  for (float size : {-200.0f, 200.0f, -3000.0f, 3000.0f}) {
    Problem problem(20, 5, 1);
    for (std::vector<float>* values : {&problem.x, &problem.dt, &problem.z}) {
      std::fill(values->begin(), values->end(), size);
    }
    const Result result = RunKernel(problem, {1});
    for (float value : result.output) EXPECT_TRUE(std::isfinite(value)) << size;
    for (float value : result.state) EXPECT_TRUE(std::isfinite(value)) << size;
    ExpectClose(RunFormula(problem).output, result.output);
  }
}

ADDER_ON_EVERY_TARGET(Mamba1KernelTest);

}  // namespace
}  // namespace adder
