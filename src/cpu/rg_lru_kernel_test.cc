#include "cpu/rg_lru_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/expect_close_for_test.h"
#include "cpu/simd_targets_for_test.h"
#include "cpu/wave_for_test.h"

namespace adder {
namespace {

class RgLruKernelTest : public OnEveryTarget {};

struct Problem {
  Problem(int64_t head_count, int64_t block_size, int64_t token_count)
      : width(head_count * block_size),
        block(block_size),
        tokens(token_count),
        input_weight(Wave(width * block, 0.83f, 0.02f, 0.4f)),
        input_bias(Wave(width, 1.7f, 0.1f, 0.6f)),
        recurrent_weight(Wave(width * block, 0.59f, -0.01f, 0.5f)),
        recurrent_bias(Wave(width, 0.7f, -0.2f, 0.8f)),
        // From a decay of almost nothing to one within a token.
        decay(Wave(width, 2.1f, -3.0f, 5.0f)),
        x(Wave(token_count * width, 0.61f, 0.1f, 1.5f)),
        state(Wave(width, 0.23f, 0.0f, 1.0f)) {}

  int64_t width, block, tokens;
  bool starts = false;
  std::vector<float> input_weight, input_bias, recurrent_weight, recurrent_bias, decay, x, state;
};

struct Result {
  std::vector<float> output, state;
};

// Through the kernel, tokens in pieces of the given sizes and channels in two blocks.
Result RunKernel(const Problem& problem, const std::vector<int64_t>& pieces) {
  const int64_t stride = problem.width + 2;
  Result result{std::vector<float>(static_cast<size_t>(problem.tokens * stride)), problem.state};
  std::vector<float> scratch(static_cast<size_t>(RgLruScratch(problem.block)));
  int64_t done = 0;
  for (size_t i = 0; done < problem.tokens; ++i) {
    RgLruRun run;
    run.width = problem.width;
    run.block = problem.block;
    run.input_weight = problem.input_weight.data();
    run.input_bias = problem.input_bias.data();
    run.recurrent_weight = problem.recurrent_weight.data();
    run.recurrent_bias = problem.recurrent_bias.data();
    run.decay = problem.decay.data();
    run.decay_scale = 3;
    run.tokens = std::min(i < pieces.size() ? pieces[i] : 1, problem.tokens - done);
    run.starts = problem.starts && done == 0;
    run.x = problem.x.data() + done * problem.width;
    run.state = result.state.data();
    run.output_stride = stride;
    run.output = result.output.data() + done * stride;
    const int64_t middle = problem.width / 2;
    RgLruScan(run, middle, problem.width, scratch.data());
    RgLruScan(run, 0, middle, scratch.data());
    done += run.tokens;
  }
  return result;
}

// Straight from the formulas of plan.h, in f64.
Result RunFormula(const Problem& problem) {
  const int64_t stride = problem.width + 2;
  Result result{std::vector<float>(static_cast<size_t>(problem.tokens * stride)), problem.state};
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  for (int64_t c = 0; c < problem.width; ++c) {
    const int64_t head = c / problem.block * problem.block;
    double h = problem.state[c];
    for (int64_t t = 0; t < problem.tokens; ++t) {
      const float* x = problem.x.data() + t * problem.width;
      double input = problem.input_bias[c];
      double recurrent = problem.recurrent_bias[c];
      for (int64_t i = 0; i < problem.block; ++i) {
        const int64_t at = (head + i) * problem.block + c - head;
        input += static_cast<double>(x[head + i]) * problem.input_weight[at];
        recurrent += static_cast<double>(x[head + i]) * problem.recurrent_weight[at];
      }
      const double log_a =
          -3 * sigmoid(recurrent) * std::log1p(std::exp(static_cast<double>(problem.decay[c])));
      const double size = problem.starts && t == 0 ? 1 : std::sqrt(-std::expm1(2 * log_a));
      h = std::exp(log_a) * h + size * sigmoid(input) * x[c];
      result.output[t * stride + c] = static_cast<float>(h);
    }
    result.state[c] = static_cast<float>(h);
  }
  return result;
}

struct Sizes {
  int64_t heads, block;
};
// Fewer channels than a vector, rests, odd blocks.
constexpr Sizes kSizes[] = {{3, 5}, {2, 16}, {3, 21}, {2, 64}};

TEST_P(RgLruKernelTest, EqualsTheFormula) {
  for (const Sizes& sizes : kSizes) {
    for (int64_t tokens : {1, 2, 11}) {
      for (bool starts : {false, true}) {
        Problem problem(sizes.heads, sizes.block, tokens);
        problem.starts = starts;
        const Result expected = RunFormula(problem);
        const Result actual = RunKernel(problem, {tokens});
        ExpectClose(expected.output, actual.output);
        ExpectClose(expected.state, actual.state);
      }
    }
  }
}

TEST_P(RgLruKernelTest, BitsDoNotDependOnTheCut) {
  for (const Sizes& sizes : kSizes) {
    Problem problem(sizes.heads, sizes.block, 23);
    problem.starts = true;
    const Result whole = RunKernel(problem, {23});
    for (const std::vector<int64_t>& pieces :
         std::vector<std::vector<int64_t>>{{}, {2, 5, 3}, {1, 4, 8, 9}, {22, 1}}) {
      const Result cut = RunKernel(problem, pieces);
      EXPECT_EQ(whole.output, cut.output);
      EXPECT_EQ(whole.state, cut.state);
    }
  }
}

TEST_P(RgLruKernelTest, ExtremeInputsStayFinite) {
  for (float size : {-200.0f, 200.0f, -3000.0f, 3000.0f}) {
    Problem problem(2, 12, 2);
    std::fill(problem.x.begin(), problem.x.end(), size);
    const Result result = RunKernel(problem, {2});
    for (float value : result.output) EXPECT_TRUE(std::isfinite(value)) << size;
    ExpectClose(RunFormula(problem).output, result.output);
  }
}

ADDER_ON_EVERY_TARGET(RgLruKernelTest);

}  // namespace
}  // namespace adder
