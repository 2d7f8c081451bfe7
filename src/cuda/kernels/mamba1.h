// The Mamba-1 mixer between dt_proj and out_proj.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

inline constexpr int kMostMamba1State = 64;

// An RMSNorm of a whole small row.
struct SmallNorm {
  bool used = false;
  const float* weight = nullptr;  // null: all ones
  float eps = 0;
};

// Sizes and weights as in model/plan.h. State of a sequence, from ssm_offset floats after the start
// of its slot on: [d_state, inner].
struct Mamba1Params {
  int inner = 0;
  int d_state = 0;           // at most kMostMamba1State
  const float* a = nullptr;  // [d_state, inner]
  const float* d = nullptr;  // [inner]
  SmallNorm b_norm;
  SmallNorm c_norm;
  long long ssm_offset = 0;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  // [rows, stride] each.
  const float* x = nullptr;  // after the convolution and SiLU
  int x_stride = 0;
  const float* b_c = nullptr;  // B [d_state] | C [d_state]
  int b_c_stride = 0;
  const float* dt = nullptr;  // [inner], before softplus
  int dt_stride = 0;
  const float* z = nullptr;
  int z_stride = 0;
  float* output = nullptr;  // y * silu(z)
  int output_stride = 0;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output; null: none
  int rounded_output_stride = 0;
};

// Runs of any number of tokens. A token's result is bitwise the same however the tokens of its
// sequence are cut into runs.
void LaunchMamba1Scan(const Mamba1Params& params, cudaStream_t stream);

}  // namespace adder::cuda
