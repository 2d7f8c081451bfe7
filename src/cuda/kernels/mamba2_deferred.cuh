// What kernels of a Mamba-2 step know of deferred tokens. See mamba2_deferred.h.
#pragma once

#include <cuda_runtime.h>

#include "cuda/kernels/mamba2_deferred.h"
#include "cuda/kernels/mamba2_state.cuh"

namespace adder::cuda {

constexpr int kMostDeferred = kDeferredTokens - 1;

// Steps since a head's turn to be written.
__device__ __forceinline__ int StepsSinceTurn(const SequenceRun& run, int head) {
  return static_cast<int>(static_cast<unsigned>(run.position + head) % kDeferredTokens);
}
// Tokens that the state in memory lacks after so many.
__device__ __forceinline__ int DeferredCount(const SequenceRun& run, int steps) {
  return min(steps, run.position - run.settled);
}
__device__ __forceinline__ bool IsTurn(int steps) { return steps == kMostDeferred; }

// The ring's row of the token `age` positions ago; 0: the one of this step.
__device__ __forceinline__ float* RowOfAge(const Mamba2Params& p, const DeferredRow& row,
                                           const SequenceRun& run, int age) {
  const unsigned at = static_cast<unsigned>(run.position - age + kDeferredTokens) % kDeferredTokens;
  return run.recurrent + p.deferred_offset + static_cast<int>(at) * row.floats;
}

// The past tokens' B of a warp's rows, by age - 1.
struct alignas(16) DeferredB {
  float b[kMostDeferred][kWarpRows];

  // Each lane loads one row's, and stores it.
  __device__ __forceinline__ static void Load(const Mamba2Params& p, const SequenceRun& run,
                                              const Place& place, float (&values)[kMostDeferred]) {
    const DeferredRow row(p);
    const int at = row.b + place.group * row.b_stride + place.warp * kWarpRows + place.lane;
#pragma unroll
    for (int i = 0; i < kMostDeferred; ++i) values[i] = __ldcg(RowOfAge(p, row, run, i + 1) + at);
  }
  __device__ __forceinline__ void Store(int lane, const float (&values)[kMostDeferred]) {
#pragma unroll
    for (int i = 0; i < kMostDeferred; ++i) b[i][lane] = values[i];
  }
};

// The past tokens' dt x of a part and decay of its head, by age - 1.
struct alignas(16) DeferredX {
  float x[kMostDeferred][kPart];
  float decay[kMostDeferred];
  int steps;  // StepsSinceTurn of the head

  struct Values {
    float x[kMostDeferred];
    float decay[kMostDeferred];

    // Each lane loads one channel's.
    __device__ __forceinline__ void Load(const Mamba2Params& p, const SequenceRun& run,
                                         const Place& place) {
      const DeferredRow row(p);
#pragma unroll
      for (int i = 0; i < kMostDeferred; ++i) {
        const float* from = RowOfAge(p, row, run, i + 1);
        x[i] = place.has_x ? __ldcg(from + place.x_channel) : 0.0f;
        decay[i] = __ldcg(from + row.decay + place.head);
      }
    }
  };
  __device__ __forceinline__ void Store(int lane, const Values& values, int steps_since_turn) {
#pragma unroll
    for (int i = 0; i < kMostDeferred; ++i) {
      x[i][lane] = values.x[i];
      if (lane == 0) decay[i] = values.decay[i];
    }
    if (lane == 0) steps = steps_since_turn;
  }
};

// Brings a thread's part of the state up to the token before this step's. of_rows: the lane's first
// row in its warp.
__device__ __forceinline__ void RepeatDeferred(float4 (&state)[kRows], const DeferredB& past_b,
                                               const DeferredX& past_x, int count, int of_rows,
                                               int lane) {
#pragma unroll 1
  for (int age = count; age > 0; --age) {
    RepeatStep(state, past_b.b[age - 1] + of_rows, past_x.decay[age - 1],
               reinterpret_cast<const float4*>(past_x.x[age - 1])[lane % 8]);
  }
}

// This step's token goes to the ring. b: of the lane's row of the warp's; x: of the part's channel
// place.x_channel, times dt.
__device__ __forceinline__ void DeferB(const Mamba2Params& p, const SequenceRun& run,
                                       const Place& place, float b) {
  const DeferredRow row(p);
  RowOfAge(p, row, run,
           0)[row.b + place.group * row.b_stride + place.warp * kWarpRows + place.lane] = b;
}
__device__ __forceinline__ void DeferX(const Mamba2Params& p, const SequenceRun& run,
                                       const Place& place, const StepSize& step, float x) {
  const DeferredRow row(p);
  float* to = RowOfAge(p, row, run, 0);
  if (place.has_x) to[place.x_channel] = step.dt * x;
  if (place.part == 0 && place.lane == 0) to[row.decay + place.head] = step.decay;
}

}  // namespace adder::cuda
