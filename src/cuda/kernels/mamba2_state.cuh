// The state of a Mamba-2 head in registers, and its step for one token.
//
// A block owns a part of one head: kPart channels and all rows of d_state. Each of its warps owns
// kWarpRows rows, and a lane four channels of eight of them: eight lanes together read 128
// contiguous bytes of a row, and each state element is in a register of one thread.
#pragma once

#include <cuda_runtime.h>

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/mamba2.h"
#include "cuda/kernels/stored_state.cuh"

namespace adder::cuda {

constexpr int kPart = 32;
constexpr int kRows = 8;  // of a lane
constexpr int kWarpRows = 4 * kRows;
constexpr int kMaxWarps = kMaxStateSize / kWarpRows;
constexpr int kMaxThreads = kMaxWarps * 32;
static_assert(kWarpRows == 32, "a lane convolves one row of B and C");

__device__ __forceinline__ float MixerSilu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

struct StepSize {
  float dt;
  float decay;
};
__device__ __forceinline__ StepSize MakeStep(const Mamba2Params& p, float dt_bias, float a,
                                             float input) {
  const float dt = fminf(fmaxf(Softplus(input + dt_bias), p.dt_min), p.dt_max);
  return {dt, expf(dt * a)};
}

// Where a thread works.
struct Place {
  int lane;
  int warp;
  int head;
  int group;      // of B and C
  int part;       // the first channel of the block's part, in the head
  int first_row;  // of the lane's kRows
  int channel;    // of the lane's four, in the head
  int count;      // how many of them the head has
  int x_channel;  // conv channel of x that this lane convolves
  bool has_x;
  bool writes_group;  // whether it is the group's first part, whose owner writes B's and C's window
};
// part: counted within the head.
__device__ __forceinline__ Place FindPlace(const Mamba2Params& p, int head, int part) {
  Place place;
  place.lane = static_cast<int>(threadIdx.x) % 32;
  place.warp = static_cast<int>(threadIdx.x) / 32;
  place.head = head;
  place.part = part * kPart;
  place.first_row = place.warp * kWarpRows + place.lane / 8 * kRows;
  place.channel = place.part + place.lane % 8 * 4;
  place.count = min(4, p.head_dim - place.channel);
  place.x_channel = place.head * p.head_dim + place.part + place.lane;
  place.has_x = place.part + place.lane < p.head_dim;
  const int heads_per_group = p.heads / p.groups;
  place.group = place.head / heads_per_group;
  place.writes_group = place.part == 0 && place.head == place.group * heads_per_group;
  return place;
}

// The conv channel of row n of B; that of C lies groups * d_state behind.
__device__ __forceinline__ int BChannel(const Mamba2Params& p, const Place& place, int n) {
  return p.inner() + place.group * p.d_state + n;
}

// This lane's first state element.
template <class Stored>
__device__ __forceinline__ Stored* StateOf(const Mamba2Params& p, const Place& place,
                                           float* recurrent) {
  return reinterpret_cast<Stored*>(recurrent + p.ssm_offset) +
         (static_cast<long long>(place.head) * p.d_state + place.first_row) * p.head_dim +
         place.channel;
}

// kVector: head_dim is a multiple of four, so that four channels are one aligned load.
template <bool kVector, class Stored>
__device__ __forceinline__ void LoadState(float4 (&state)[kRows], const Stored* from,
                                          const Mamba2Params& p, const Place& place) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    state[i] = make_float4(0, 0, 0, 0);
    const bool inside = place.first_row + i < p.d_state;
    if constexpr (kVector) {
      if (inside && place.count > 0) {
        state[i] = WidenFour<Stored>(__ldcg(reinterpret_cast<const FourStored<Stored>*>(from)));
      }
    } else {
      if (inside && place.count > 0) state[i].x = WidenOne(from[0]);
      if (inside && place.count > 1) state[i].y = WidenOne(from[1]);
      if (inside && place.count > 2) state[i].z = WidenOne(from[2]);
      if (inside && place.count > 3) state[i].w = WidenOne(from[3]);
    }
    from += p.head_dim;
  }
}
template <bool kVector, class Stored>
__device__ __forceinline__ void StoreState(const float4 (&state)[kRows], Stored* to,
                                           const Mamba2Params& p, const Place& place) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const bool inside = place.first_row + i < p.d_state;
    if constexpr (kVector) {
      if (inside && place.count > 0) {
        *reinterpret_cast<FourStored<Stored>*>(to) = RoundFour<Stored>(state[i]);
      }
    } else {
      if (inside && place.count > 0) to[0] = RoundOne<Stored>(state[i].x);
      if (inside && place.count > 1) to[1] = RoundOne<Stored>(state[i].y);
      if (inside && place.count > 2) to[2] = RoundOne<Stored>(state[i].z);
      if (inside && place.count > 3) to[3] = RoundOne<Stored>(state[i].w);
    }
    to += p.head_dim;
  }
}

// What a token adds, without its B.
__device__ __forceinline__ float4 TimesDt(const StepSize& step, float4 x) {
  return make_float4(x.x * step.dt, x.y * step.dt, x.z * step.dt, x.w * step.dt);
}

// A token that is in the past for this thread's part of the state. x: times dt.
__device__ __forceinline__ void RepeatStep(float4 (&state)[kRows], const float* b, float decay,
                                           const float4& x) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    state[i].x = fmaf(decay, state[i].x, b[i] * x.x);
    state[i].y = fmaf(decay, state[i].y, b[i] * x.y);
    state[i].z = fmaf(decay, state[i].z, b[i] * x.z);
    state[i].w = fmaf(decay, state[i].w, b[i] * x.w);
  }
}

// One token for this thread's part of the state. b and c are those of the lane's rows, in shared
// memory. Returns the warp's sum of C . state for the part's channel SumChannel(lane).
__device__ __forceinline__ float StateStep(float4 (&state)[kRows], const float* b, const float* c,
                                           int lane, const StepSize& step, float4 x) {
  x = TimesDt(step, x);
  float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    state[i].x = fmaf(step.decay, state[i].x, b[i] * x.x);
    state[i].y = fmaf(step.decay, state[i].y, b[i] * x.y);
    state[i].z = fmaf(step.decay, state[i].z, b[i] * x.z);
    state[i].w = fmaf(step.decay, state[i].w, b[i] * x.w);
    sum.x = fmaf(c[i], state[i].x, sum.x);
    sum.y = fmaf(c[i], state[i].y, sum.y);
    sum.z = fmaf(c[i], state[i].z, sum.z);
    sum.w = fmaf(c[i], state[i].w, sum.w);
  }
  // Over the four lanes that share channels, each of which ends up with one.
  const bool upper = (lane & 16) != 0;
  float first = upper ? sum.z : sum.x;
  float second = upper ? sum.w : sum.y;
  first += __shfl_xor_sync(0xffffffffu, upper ? sum.x : sum.z, 16);
  second += __shfl_xor_sync(0xffffffffu, upper ? sum.y : sum.w, 16);
  const bool odd = (lane & 8) != 0;
  const float mine = odd ? second : first;
  return mine + __shfl_xor_sync(0xffffffffu, odd ? first : second, 8);
}
__device__ __forceinline__ int SumChannel(int lane) {
  return lane % 8 * 4 + lane / 16 * 2 + lane / 8 % 2;
}

// Sum over warps, in their order. partial: [warps][kPart].
__device__ __forceinline__ float SumOfWarps(const float* partial, int warps, int channel) {
  float sum = 0;
  for (int w = 0; w < warps; ++w) sum += partial[w * kPart + channel];
  return sum;
}

}  // namespace adder::cuda
