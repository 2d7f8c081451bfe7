// The RWKV-7 mixer between its projections and output, and the token shift before them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

inline constexpr int kMostRwkv7Dim = 128;

// Sizes and weights as Rwkv7 in model/plan.h. State of a sequence, from state_offset floats after
// the start of its slot on, on an 8-byte boundary: [heads, head_dim, head_dim], a row per channel
// of the key.
struct Rwkv7Params {
  int heads = 0;
  int head_dim = 0;                  // at most kMostRwkv7Dim
  const float* key_scale = nullptr;  // [heads * head_dim], as all vectors here
  const float* key_rate = nullptr;
  const float* bonus = nullptr;
  const float* norm_weight = nullptr;  // of a layer norm of each head; null: all ones
  const float* norm_bias = nullptr;    // null: none
  float norm_eps = 0;
  long long state_offset = 0;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  // [rows, stride], all as wide.
  int stride = 0;
  const float* r = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* decay = nullptr;
  const float* rate = nullptr;
  const float* gate = nullptr;
  const float* value_mix = nullptr;    // null: v is as it is
  const float* first_value = nullptr;  // with a value_mix
  float* output = nullptr;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output; null: none
  int rounded_output_stride = 0;
};

// Runs of any number of tokens. A token's result is bitwise the same however the tokens of its
// sequence are cut into runs.
void LaunchRwkv7(const Rwkv7Params& params, cudaStream_t stream);

// As TokenShiftOp in program/program.h, behind its norm. State of a sequence, from state_offset
// floats after the start of its slot on: [width], the previous row.
struct TokenShiftParams {
  int width = 0;
  int parts = 0;
  const float* mix = nullptr;  // [parts, width]
  long long state_offset = 0;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  int rows = 0;
  const int* row_runs = nullptr;
  const float* input = nullptr;  // [rows, input_stride]
  int input_stride = 0;
  float* output = nullptr;  // [rows, output_stride], parts * width; null: the bf16 copy alone
  int output_stride = 0;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output; null: none
  int rounded_output_stride = 0;
};

// Of runs with at most `most_tokens` tokens.
void LaunchTokenShift(const TokenShiftParams& params, int most_tokens, cudaStream_t stream);

}  // namespace adder::cuda
