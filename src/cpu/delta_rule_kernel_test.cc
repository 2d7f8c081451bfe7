#include "cpu/delta_rule_kernel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cpu/expect_close_for_test.h"
#include "cpu/simd_targets_for_test.h"
#include "cpu/wave_for_test.h"

namespace adder {
namespace {

class DeltaRuleKernelTest : public OnEveryTarget {};

// The inputs of a run; rows of values are wider than used.
struct Problem {
  Problem(int64_t head_count, int64_t row_count, int64_t column_count, int64_t token_count,
          bool has_answer)
      : heads(head_count), rows(row_count), columns(column_count), tokens(token_count) {
    const int64_t weights = tokens * heads * rows;
    // Keys short enough that the recurrence forgets rather than grows.
    const float size = 1.0f / std::sqrt(static_cast<float>(rows));
    decay = Wave(weights, 0.83f, 0.7f, 0.25f);
    read = Wave(weights, 0.61f, 0.1f * size, size);
    write = Wave(weights, 0.47f, 0.0f, size);
    if (has_answer) answer = Wave(weights, 0.71f, -0.2f * size, 0.6f * size);
    query = Wave(weights, 0.29f, 0.2f, 0.8f);
    rate = Wave(tokens * heads, 1.3f, 0.6f, 0.35f);
    value = Wave(tokens * value_stride(), 0.91f, 0.2f, 1.1f);
    state = Wave(heads * rows * columns, 0.23f, 0.0f, 1.0f);
  }
  int64_t value_stride() const { return heads * columns + 3; }

  int64_t heads, rows, columns, tokens;
  std::vector<float> decay, read, write, answer, query, rate, value, state;
};

struct Result {
  std::vector<float> output, state;
};

// Through the kernel, tokens in pieces of the given sizes and heads in two blocks.
Result RunKernel(const Problem& problem, const std::vector<int64_t>& pieces) {
  const int64_t width = problem.heads * problem.columns;
  Result result{std::vector<float>(static_cast<size_t>(problem.tokens * (width + 2))),
                problem.state};
  std::vector<float> strip(static_cast<size_t>(problem.rows * kDeltaStripColumns));
  int64_t done = 0;
  for (size_t i = 0; done < problem.tokens; ++i) {
    const int64_t weights = done * problem.heads * problem.rows;
    DeltaRuleRun run;
    run.heads = problem.heads;
    run.rows = problem.rows;
    run.columns = problem.columns;
    run.tokens = std::min(i < pieces.size() ? pieces[i] : 1, problem.tokens - done);
    run.decay = problem.decay.data() + weights;
    run.read = problem.read.data() + weights;
    run.write = problem.write.data() + weights;
    run.answer = problem.answer.empty() ? nullptr : problem.answer.data() + weights;
    run.query = problem.query.data() + weights;
    run.rate = problem.rate.data() + done * problem.heads;
    run.value_stride = problem.value_stride();
    run.value = problem.value.data() + done * run.value_stride + 1;
    run.state = result.state.data();
    run.output_stride = width + 2;
    run.output = result.output.data() + done * run.output_stride;
    DeltaRuleScan(run, problem.heads / 2, problem.heads, strip.data());
    DeltaRuleScan(run, 0, problem.heads / 2, strip.data());
    done += run.tokens;
  }
  return result;
}

// Straight from the formulas of the header, in f64.
Result RunFormula(const Problem& problem) {
  const int64_t width = problem.heads * problem.columns;
  Result result{std::vector<float>(static_cast<size_t>(problem.tokens * (width + 2))),
                problem.state};
  std::vector<double> state(problem.state.begin(), problem.state.end());
  for (int64_t t = 0; t < problem.tokens; ++t) {
    for (int64_t head = 0; head < problem.heads; ++head) {
      const int64_t at = (t * problem.heads + head) * problem.rows;
      for (int64_t c = 0; c < problem.columns; ++c) {
        const auto s = [&](int64_t n) -> double& {
          return state[static_cast<size_t>((head * problem.rows + n) * problem.columns + c)];
        };
        const double v = problem.value[t * problem.value_stride() + 1 + head * problem.columns + c];
        double p = 0;
        for (int64_t n = 0; n < problem.rows; ++n) p += problem.read[at + n] * s(n);
        double y = 0;
        for (int64_t n = 0; n < problem.rows; ++n) {
          const double kept = problem.decay[at + n] * s(n);
          s(n) =
              problem.answer.empty()
                  ? kept + problem.write[at + n] * problem.rate[t * problem.heads + head] * (v - p)
                  : kept + problem.write[at + n] * v + problem.answer[at + n] * p;
          y += problem.query[at + n] * s(n);
        }
        result.output[t * (width + 2) + head * problem.columns + c] = static_cast<float>(y);
      }
    }
  }
  std::copy(state.begin(), state.end(), result.state.begin());
  return result;
}

struct Sizes {
  int64_t heads, rows, columns;
};
// Fewer columns than a vector, rests of strips, odd numbers of rows.
constexpr Sizes kSizes[] = {{3, 12, 24}, {2, 7, 5}, {4, 16, 16}, {2, 33, 77}, {3, 64, 128}};

TEST_P(DeltaRuleKernelTest, EqualsTheFormula) {
  for (const Sizes& sizes : kSizes) {
    for (int64_t tokens : {1, 2, 11}) {
      for (bool has_answer : {false, true}) {
        const Problem problem(sizes.heads, sizes.rows, sizes.columns, tokens, has_answer);
        const Result expected = RunFormula(problem);
        const Result actual = RunKernel(problem, {tokens});
        ExpectClose(expected.output, actual.output);
        ExpectClose(expected.state, actual.state);
      }
    }
  }
}

TEST_P(DeltaRuleKernelTest, BitsDoNotDependOnTheCut) {
  for (const Sizes& sizes : kSizes) {
    for (bool has_answer : {false, true}) {
      const Problem problem(sizes.heads, sizes.rows, sizes.columns, 23, has_answer);
      const Result whole = RunKernel(problem, {23});
      for (const std::vector<int64_t>& pieces :
           std::vector<std::vector<int64_t>>{{}, {2, 5, 3}, {1, 4, 8, 9}, {22, 1}}) {
        const Result cut = RunKernel(problem, pieces);
        EXPECT_EQ(whole.output, cut.output);
        EXPECT_EQ(whole.state, cut.state);
      }
    }
  }
}

// One mixer of GatedDelta and its inputs; no two sizes alike, rows wider than used.
struct Prepared {
  Prepared(bool per_channel, int64_t token_count) : tokens(token_count) {
    mixer.key_heads = 3;
    mixer.value_heads = 6;
    mixer.key_dim = 19;
    mixer.value_dim = 5;
    mixer.decay_per_channel = per_channel;
    mixer.beta_scale = 2;
    mixer.qk_eps = 1e-3f;
    mixer.query_scale = 0.4f;
    const int64_t weights = tokens * mixer.value_heads * mixer.key_dim;
    for (auto* out : {&decay, &read, &write, &query}) out->resize(static_cast<size_t>(weights));
    rate.resize(static_cast<size_t>(tokens * mixer.value_heads));
  }

  void Run(float size) {
    const std::vector<float> a = Wave(mixer.value_heads, 0.8f, -1.2f, 1.0f);
    const std::vector<float> dt_bias = Wave(mixer.decay_rows(), 1.1f, -0.5f, 1.5f);
    qkv = Wave(tokens * qkv_stride, 0.61f, 0.1f, 1.5f * size);
    beta = Wave(tokens * beta_stride, 0.47f, 0.2f, 2.5f * size);
    decay_in = Wave(tokens * decay_stride, 0.91f, 0.2f, 1.1f * size);
    const GatedDeltaInputs inputs{&mixer,      a.data(),        dt_bias.data(),
                                  qkv.data(),  qkv_stride,      beta.data(),
                                  beta_stride, decay_in.data(), decay_stride};
    const GatedDeltaRows rows{decay.data(), read.data(), write.data(), query.data(), rate.data()};
    PrepareGatedDelta(inputs, 1, tokens, rows);
    PrepareGatedDelta(inputs, 0, 1, rows);
    for (int64_t t = 0; t < tokens; ++t) Expect(a, dt_bias, t);
  }

  void Expect(const std::vector<float>& a, const std::vector<float>& dt_bias, int64_t t) const {
    const int64_t dim = mixer.key_dim;
    for (int64_t head = 0; head < mixer.value_heads; ++head) {
      const float* q = qkv.data() + t * qkv_stride + head / 2 * dim;
      const float* k = q + mixer.key_heads * dim;
      double q_squares = mixer.qk_eps;
      double k_squares = mixer.qk_eps;
      for (int64_t n = 0; n < dim; ++n) {
        q_squares += static_cast<double>(q[n]) * q[n];
        k_squares += static_cast<double>(k[n]) * k[n];
      }
      for (int64_t n = 0; n < dim; ++n) {
        const auto at = static_cast<size_t>((t * mixer.value_heads + head) * dim + n);
        const int64_t row = mixer.decay_per_channel ? head * dim + n : head;
        const double x = static_cast<double>(decay_in[t * decay_stride + row]) + dt_bias[row];
        const double softplus = std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
        const double kept = std::exp(a[head] * softplus);
        const double key = k[n] / std::sqrt(k_squares);
        EXPECT_NEAR(decay[at], kept, 1e-6);
        EXPECT_NEAR(write[at], key, 1e-6);
        EXPECT_NEAR(read[at], kept * key, 1e-6);
        EXPECT_NEAR(query[at], mixer.query_scale * q[n] / std::sqrt(q_squares), 1e-6);
      }
      const double b = beta[t * beta_stride + head];
      EXPECT_NEAR(rate[t * mixer.value_heads + head], 2 / (1 + std::exp(-b)), 1e-6);
    }
  }

  GatedDelta mixer;
  int64_t tokens;
  const int64_t qkv_stride = 2 * 3 * 19 + 6 * 5 + 4;
  const int64_t beta_stride = 11;
  const int64_t decay_stride = 6 * 19 + 2;
  std::vector<float> qkv, beta, decay_in;
  std::vector<float> decay, read, write, query, rate;
};

TEST_P(DeltaRuleKernelTest, PreparationEqualsTheFormula) {
  for (bool per_channel : {false, true}) {
    Prepared prepared(per_channel, 4);
    prepared.Run(1);
    // Far out on both sides nothing overflows.
    prepared.Run(300);
  }
}

ADDER_ON_EVERY_TARGET(DeltaRuleKernelTest);

}  // namespace
}  // namespace adder
