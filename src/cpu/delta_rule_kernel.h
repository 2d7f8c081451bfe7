// Delta rules: recurrences whose state is a matrix per head that is corrected, at each token, by
// what it answers to the token's key. For a run of tokens of one sequence; a decode step is a run
// of one token.
#pragma once

#include <cstdint>

#include "model/plan.h"

namespace adder {

// Per head, with S [rows, columns], v [columns] and one weight per row:
//   p = sum over rows n of read[n] S[n]
//   S[n] = decay[n] S[n] + write[n] (rate (v - p))                    without `answer`
//   S[n] = decay[n] S[n] + write[n] v + answer[n] p                   with it
//   y = sum over rows n of query[n] S[n]
struct DeltaRuleRun {
  int64_t heads = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t tokens = 0;
  // [tokens, heads, rows]
  const float* decay = nullptr;
  const float* read = nullptr;
  const float* write = nullptr;
  const float* answer = nullptr;  // or none
  const float* query = nullptr;
  const float* rate = nullptr;   // [tokens, heads]; not read with `answer`
  const float* value = nullptr;  // rows of heads * columns, value_stride apart
  int64_t value_stride = 0;
  float* state = nullptr;   // [heads, rows, columns]
  float* output = nullptr;  // rows of heads * columns, output_stride apart
  int64_t output_stride = 0;
};

// Columns of the state that the kernel works on at a time, at most.
inline constexpr int64_t kDeltaStripColumns = 64;

// Heads [head_begin, head_end), all tokens. `strip` has room for rows * kDeltaStripColumns floats.
// Each state element takes the same operations in the same order whether tokens come one at a time
// or many, so runs may be cut anywhere.
void DeltaRuleScan(const DeltaRuleRun& run, int64_t head_begin, int64_t head_end, float* strip);

// What of GatedDelta (plan.h) comes before its recurrence: norms of q and k, decay and rate.
struct GatedDeltaInputs {
  const GatedDelta* mixer = nullptr;
  const float* a = nullptr;        // [value_heads]
  const float* dt_bias = nullptr;  // [decay_rows()]
  const float* qkv = nullptr;      // rows after the convolution, qkv_stride apart
  int64_t qkv_stride = 0;
  const float* beta = nullptr;  // rows of value_heads, before the sigmoid
  int64_t beta_stride = 0;
  const float* decay = nullptr;  // rows of decay_rows(), as projected
  int64_t decay_stride = 0;
};

// Rows of the recurrence for tokens [token_begin, token_end); the arrays are those of a
// DeltaRuleRun.
struct GatedDeltaRows {
  float* decay = nullptr;
  float* read = nullptr;
  float* write = nullptr;
  float* query = nullptr;
  float* rate = nullptr;
};
void PrepareGatedDelta(const GatedDeltaInputs& inputs, int64_t token_begin, int64_t token_end,
                       const GatedDeltaRows& rows);

}  // namespace adder
