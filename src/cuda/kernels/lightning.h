// The recurrence of lightning attention.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

inline constexpr int kMostLightningDim = 128;

// As LightningAttention in model/plan.h, before its norm. State of a sequence, from state_offset
// floats after the start of its slot on: [heads, head_dim, head_dim].
struct LightningParams {
  int heads = 0;
  int head_dim = 0;               // at most kMostLightningDim
  const float* slopes = nullptr;  // [heads]
  long long state_offset = 0;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  const float* qkv = nullptr;  // [rows, qkv_stride], per head q | k | v
  int qkv_stride = 0;
  float* output = nullptr;  // [rows, output_stride]
  int output_stride = 0;
};

// Runs of any number of tokens. A token's result is bitwise the same however the tokens of its
// sequence are cut into runs.
void LaunchLightning(const LightningParams& params, cudaStream_t stream);

}  // namespace adder::cuda
