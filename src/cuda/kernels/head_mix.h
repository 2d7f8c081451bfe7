// The mixing of q, k and v before attention.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

// group_taps * head_dim, and head_dim, at most.
inline constexpr int kMostHeadMixFloats = 4096;
inline constexpr int kMostHeadMixDim = 1024;

// As HeadMixing in model/plan.h; channels are those of q | k. State of a sequence, in floats after
// the start of its slot: from conv_offset on a ring [taps + group_taps - 1][channels], the row of
// position p in row p % (taps + group_taps - 1), unused with one tap of each kind; from
// value_offset on the last v2 [kv_heads * head_dim / 2].
struct HeadMixParams {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int taps = 0;
  int group_taps = 0;
  const float* conv_weight = nullptr;   // [taps, channels]
  const float* conv_bias = nullptr;     // [channels]
  const float* group_weight = nullptr;  // [group_taps, head_dim, channels]
  const float* group_bias = nullptr;    // [channels]
  long long conv_offset = 0;
  long long value_offset = 0;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  int rows = 0;
  const int* row_runs = nullptr;
  const float* input = nullptr;  // [rows, stride]: q | k | v1 | v2
  float* output = nullptr;       // [rows, stride]: q | k | v, not the input
  int stride = 0;
};

// Of runs with at most `most_tokens` tokens. A token's result is bitwise the same however the
// tokens of its sequence are cut into runs.
void LaunchHeadMix(const HeadMixParams& params, int most_tokens, cudaStream_t stream);

}  // namespace adder::cuda
