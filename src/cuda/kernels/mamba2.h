// The Mamba-2 mixer between in_proj and the gated norm.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "core/dtype.h"
#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

// Sizes and weights as in model/plan.h, all f32 in device memory. State of a sequence, in floats
// from the start of its slot:
//   conv_offset  a ring [d_conv][conv_channels]: the inputs at position p lie in row p % d_conv.
//                With one row more than the window, a step never writes what it reads, so blocks
//                need not agree on who rolls the window. Unused with d_conv = 1.
//   ssm_offset   [heads, d_state, head_dim] of ssm_dtype
struct Mamba2Params {
  int heads = 0;
  int head_dim = 0;
  int d_state = 0;
  int groups = 0;
  int d_conv = 0;
  float dt_min = 0;
  float dt_max = 0;
  const float* conv_weight = nullptr;  // [d_conv, conv_channels], time-major
  const float* conv_bias = nullptr;    // null: none
  const float* dt_bias = nullptr;
  const float* a = nullptr;
  const float* d = nullptr;
  long long conv_offset = 0;
  long long ssm_offset = 0;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  const float* projected = nullptr;  // z | x | B | C | dt
  int projected_stride = 0;
  float* output = nullptr;  // [rows, inner]: y * silu(z)
  int output_stride = 0;
  // A bf16 copy of the output, written by the step alone; null: none.
  uint16_t* rounded_output = nullptr;
  int rounded_output_stride = 0;
  // Blocks that share a sequence's heads of a group in the step of a batch; 0: as suits the number
  // of runs. Changes no result.
  int pieces = 0;
  int multiprocessors = 132;
  bool gates = true;  // else the output is y alone
  // Of LaunchMamba2Step, one head per block, a window of four taps: the launch just before makes
  // nothing that this one reads or writes, and triggers behind its PdlWait. Both then run side by
  // side.
  bool beside_previous = false;
  // Of LaunchMamba2Scan and the scan over chunks: dt of the heads before its bias [rows,
  // dt_stride]; null: in `projected`.
  const float* dt = nullptr;
  int dt_stride = 0;
  // Of the states in memory: f32, f16 or bf16. Rounded once per launch (see stored_state.cuh).
  DType ssm_dtype = DType::kF32;

  __host__ __device__ int inner() const { return heads * head_dim; }
  __host__ __device__ int conv_channels() const { return inner() + 2 * groups * d_state; }
};

// Largest d_state the kernels hold in registers.
inline constexpr int kMaxStateSize = 256;

// One token per run: window, convolution, dt, state and gate in one kernel that reads and writes
// each state element once.
void LaunchMamba2Step(const Mamba2Params& params, cudaStream_t stream);

// The convolution of LaunchMamba2Prefill alone: convolved[row][channel], with bias and SiLU.
void LaunchCausalConv(const Mamba2Params& params, int most_tokens, float* convolved,
                      cudaStream_t stream);

// The recurrence of LaunchMamba2Prefill alone, over `convolved`. With d_conv = 1 there is no window
// that it writes.
void LaunchMamba2Scan(const Mamba2Params& params, const float* convolved, cudaStream_t stream);

// Any number of tokens per run, at most `most_tokens`. `convolved` [rows, conv_channels] is
// scratch. A token's result is bitwise that of LaunchMamba2Step where states are f32; narrower ones
// are rounded once per launch.
void LaunchMamba2Prefill(const Mamba2Params& params, int most_tokens, float* convolved,
                         cudaStream_t stream);

}  // namespace adder::cuda
