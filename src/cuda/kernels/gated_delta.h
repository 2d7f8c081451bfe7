// The gated delta rule between its projections: a step with its convolution, and runs of tokens.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

// Sizes and formulas as in model/plan.h (GatedDelta). All arrays are f32 in device memory; rows are
// those of SequenceRun. State of a sequence, in floats from the start of its slot:
//   state_offset  S [value_heads, key_dim, value_dim]
//   conv_offset   the convolution's ring (causal_conv.h), of the step alone
struct GatedDeltaParams {
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  bool decay_per_channel = false;
  bool gate_sigmoid = false;  // the gate's activation; else silu
  float qk_eps = 0;
  float query_scale = 1;
  float beta_scale = 1;
  float norm_eps = 0;
  const float* dt_bias = nullptr;      // [value_heads], or [value_heads, key_dim] per channel
  const float* a = nullptr;            // [value_heads], negative
  const float* norm_weight = nullptr;  // [value_dim]
  long long state_offset = 0;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  int rows = 0;                // tokens of all runs
  const float* qkv = nullptr;  // q | k | v: before the convolution (step) or after it
  int qkv_stride = 0;
  const float* beta = nullptr;  // [value_heads]
  int beta_stride = 0;
  const float* decay = nullptr;  // as dt_bias
  int decay_stride = 0;
  const float* gate = nullptr;  // [value_heads * value_dim]
  int gate_stride = 0;
  float* output = nullptr;  // [rows, value_heads * value_dim]
  int output_stride = 0;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output; null: none
  int rounded_output_stride = 0;

  // Of the step alone.
  int d_conv = 0;
  const float* conv_weight = nullptr;  // [d_conv, conv_channels()], time-major
  const float* conv_bias = nullptr;    // null: none
  long long conv_offset = 0;
  bool whole_heads = false;  // a block takes all of a head
  // As accurate as f32 is, and bitwise what LaunchGatedDeltaScan gives; else with errors of a few
  // roundings in exponentials, and faster.
  bool exact = true;

  __host__ __device__ int keys() const { return key_heads * key_dim; }
  __host__ __device__ int conv_channels() const { return 2 * keys() + value_heads * value_dim; }
};

inline constexpr int kMostDeltaKeyDim = 256;
inline constexpr int kMostDeltaValueDim = 256;  // and a multiple of 4
inline constexpr int kMostDeltaTaps = 8;

// One token per run: window, convolution and SiLU, norms of q and k, decay, state, norm and gate in
// one kernel that reads and writes each state element once.
void LaunchGatedDeltaStep(const GatedDeltaParams& params, cudaStream_t stream);

// Any number of tokens per run, of what the convolution has made already. A token's result does not
// depend on how runs are cut.
void LaunchGatedDeltaScan(const GatedDeltaParams& params, cudaStream_t stream);

}  // namespace adder::cuda
