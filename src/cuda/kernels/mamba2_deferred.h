// Deferred writes of Mamba-2 states.
//
// A step has to read all of a state to multiply it by C, but it need not write it. Of every
// kDeferredTokens steps only one does; the others leave behind what the token does to the state,
// its decay, dt x and B, which are a hundredth of the state's size, and later steps repeat that in
// registers. The arithmetic and its order are those of steps that write, so where states are f32 no
// result changes; narrower ones are rounded less often. A state's traffic is 5/8 of what it was.
//
// Heads take turns: in each step a quarter of them is written. A head's state lacks the tokens
// since its last turn, but none before SequenceRun::settled. Whoever reads a slot's states
// otherwise has to call LaunchMamba2Settle first.
//
// Beside a layer's state lies a ring of kDeferredTokens rows, that of position p in row
// p % kDeferredTokens: dt x [inner] | B [groups, d_state up to whole warps] | decay [heads].
// States of heads whose head_dim is no multiple of four are written by every step.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/mamba2.h"

namespace adder::cuda {

inline constexpr int kDeferredTokens = 4;

// Whether writes are deferred at all.
constexpr bool DefersWrites(int64_t head_dim) { return head_dim % 4 == 0; }

// Where the parts of a ring's row begin, in floats.
struct DeferredRow {
  int b = 0;
  int b_stride = 0;  // between groups
  int decay = 0;
  int floats = 0;  // of a row

  __host__ __device__ DeferredRow(int heads, int head_dim, int d_state, int groups)
      : b(heads * head_dim),
        b_stride((d_state + 31) / 32 * 32),
        decay(b + groups * b_stride),
        floats(decay + (heads + 3) / 4 * 4) {}
  __host__ __device__ explicit DeferredRow(const Mamba2Params& p)
      : DeferredRow(p.heads, p.head_dim, p.d_state, p.groups) {}
};

// Brings the states of a layer up to date in memory: from then on nothing is deferred of the runs'
// tokens before SequenceRun::position. Of `params` it needs sizes, offsets, ssm_dtype and runs.
void LaunchMamba2Settle(const Mamba2Params& params, cudaStream_t stream);

}  // namespace adder::cuda
