// Attention, split over positions.
//
// A block of 4 warps owns one row (token), one KV head with up to kHeads of its query heads, and
// one part of the positions. Lanes: head_dim / 8 lanes share a position, eight dimensions each, or
// with more than 256 dimensions all lanes kEights times eight; the groups of lanes take positions
// in turn with an online softmax of their own; then groups and warps merge. With several parts,
// blocks leave their sums in scratch memory and the last to arrive adds them up in order.
#include <cuda_bf16.h>

#include <algorithm>

#include "core/error.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/attention_gate.cuh"
#include "cuda/kernels/attention_place.h"
#include "cuda/kernels/attention_step.h"
#include "cuda/kernels/attention_step_wide.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/qk_norm.h"
#include "cuda/kernels/rotation.cuh"

namespace adder::cuda {
namespace {

__device__ __forceinline__ void StoreOutput(const AttentionParams& p, int row, int at,
                                            float value) {
  if (p.output_gate) value *= OutputGate<true>(p, row, at);
  p.output[static_cast<long long>(row) * p.output_stride + at] = value;
  if (p.rounded_output != nullptr) {
    p.rounded_output[static_cast<long long>(row) * p.rounded_output_stride + at] =
        __bfloat16_as_ushort(__float2bfloat16_rn(value));
  }
}

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;
constexpr int kPositionsPerPart = 32;
constexpr int kMostHeads = 4;

template <class T>
__device__ __forceinline__ void LoadEight(const T* from, float (&out)[8]);
template <>
__device__ __forceinline__ void LoadEight(const float* from, float (&out)[8]) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  const float4 b = *reinterpret_cast<const float4*>(from + 4);
  out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
  out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
}
template <>
__device__ __forceinline__ void LoadEight(const __nv_bfloat16* from, float (&out)[8]) {
  const uint4 words = *reinterpret_cast<const uint4*>(from);
  const unsigned four[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(four[i] << 16);
    out[2 * i + 1] = __uint_as_float(four[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ float ToFloat(float x) { return x; }
__device__ __forceinline__ float ToFloat(__nv_bfloat16 x) { return __bfloat162float(x); }
// Of rows that are no multiple of eight long: the first `count`.
template <class T>
__device__ __forceinline__ void LoadSome(const T* from, int count, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) out[i] = ToFloat(from[i]);
  }
}

__device__ __forceinline__ void StoreElement(float* to, float x) { *to = x; }
__device__ __forceinline__ void StoreElement(__nv_bfloat16* to, float x) {
  *to = __float2bfloat16_rn(x);
}

// Keys of one KV head at the beginning of a page; values lie `kv_heads * page_positions * head_dim`
// elements behind.
template <class T>
__device__ __forceinline__ T* KeysOf(const AttentionParams& p, char* page, int kv_head) {
  return reinterpret_cast<T*>(page + p.kv_offset) +
         static_cast<long long>(kv_head) * p.page_positions * p.head_dim;
}

// One block per row.
template <class T>
__global__ void KvAppendKernel(const __grid_constant__ AttentionParams p) {
  PdlWait();
  PdlTrigger();
  const int row = static_cast<int>(blockIdx.x);
  const SequenceRun run = p.runs[p.row_runs[row]];
  const int position = run.position + row - run.row;
  float* q = p.qkv + static_cast<long long>(row) * p.qkv_stride;
  const float* k = q + p.heads * p.head_dim;
  const float* v = k + p.kv_heads * p.head_dim;
  char* page = run.pages[position / p.page_positions];
  const int slot = position % p.page_positions;
  const int half = p.rotary_dim / 2;
  const auto rotate = [&](int pair, float first, float second) {
    return Turned(Rotation(p, position, pair), first, second);
  };
  if (p.inverse_frequencies != nullptr) {
    for (int i = threadIdx.x; i < p.heads * half; i += kThreads) {
      float* head = q + i / half * p.head_dim;
      const int pair = i % half;
      const float2 rotated = rotate(pair, head[pair], head[pair + half]);
      head[pair] = rotated.x;
      head[pair + half] = rotated.y;
    }
  }
  const int width = p.kv_heads * p.head_dim;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    const int kv_head = i / p.head_dim;
    const int dim = i % p.head_dim;
    float key = k[i];
    if (p.inverse_frequencies != nullptr && dim < 2 * half) {
      const float* head = k + kv_head * p.head_dim;
      const int pair = dim % half;
      const float2 rotated = rotate(pair, head[pair], head[pair + half]);
      key = dim < half ? rotated.x : rotated.y;
    }
    T* keys = KeysOf<T>(p, page, kv_head) + slot * p.head_dim + dim;
    StoreElement(keys, key);
    StoreElement(keys + static_cast<long long>(width) * p.page_positions, v[i]);
  }
}

// Merges a running softmax (maximum, sum, weighted values) with another.
template <int kHeads, int kEights>
struct Softmax {
  float largest[kHeads];
  float sum[kHeads];
  float values[kHeads][kEights][8];
};

__device__ __forceinline__ float ScaleOf(float largest, float merged) {
  return largest == -INFINITY ? 0.0f : expf(largest - merged);
}

template <class T, int kHeads, int kLanes, int kEights>
__global__ void __launch_bounds__(kThreads)
    AttentionKernel(const __grid_constant__ AttentionParams p) {
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int group = p.heads / p.kv_heads;
  const int head_blocks = (group + kHeads - 1) / kHeads;
  const int kv_head = blockIdx.x / head_blocks;
  const int first_head = kv_head * group + blockIdx.x % head_blocks * kHeads;
  const int head_count = min(kHeads, (kv_head + 1) * group - first_head);
  const int row = static_cast<int>(blockIdx.z);
  const SequenceRun run = p.runs[p.row_runs[row]];
  const int last_position = run.position + row - run.row;
  const int first_position = p.window > 0 ? max(0, last_position + 1 - p.window) : 0;
  const int length = last_position + 1 - first_position;
  const int value_dim = p.latent > 0 ? p.latent : p.head_dim;
  const bool whole = p.head_dim % 8 == 0;
  const int parts = min(kMaxAttentionParts, (length + kPositionsPerPart - 1) / kPositionsPerPart);
  const int part = blockIdx.y;
  if (part >= parts) {
    PdlWait();
    PdlTrigger();
    return;
  }
  const int per_part = (length + parts - 1) / parts;
  const int begin = first_position + part * per_part;
  const int end = min(last_position + 1, begin + per_part);
  constexpr int per_warp = 32 / kLanes;
  constexpr int kEightStep = kLanes * 8;  // from one eight of a lane to the next
  const int group_of_lane = lane / kLanes;
  const int dim = lane % kLanes * 8;

  PdlWait();
  PdlTrigger();
  float q[kHeads][kEights][8];
  Softmax<kHeads, kEights> softmax;
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    const float* from = p.qkv + static_cast<long long>(row) * p.qkv_stride +
                        static_cast<long long>(first_head + h) * p.head_dim + dim;
#pragma unroll
    for (int e = 0; e < kEights; ++e) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const bool valid = dim + e * kEightStep + i < p.head_dim && h < head_count;
        q[h][e][i] = valid ? from[e * kEightStep + i] * p.scale : 0.0f;
        softmax.values[h][e][i] = 0;
      }
    }
    softmax.largest[h] = -INFINITY;
    softmax.sum[h] = 0;
  }
  const long long to_values =
      p.latent > 0 ? 0 : static_cast<long long>(p.kv_heads) * p.page_positions * p.head_dim;
#pragma unroll 1
  for (int base = begin; base < end; base += kWarps * per_warp) {
    const int position = base + warp * per_warp + group_of_lane;
    const bool inside = position < end;
    float k[kEights][8] = {};
    float v[kEights][8] = {};
    if (inside) {
      const T* keys = KeysOf<T>(p, run.pages[position / p.page_positions], kv_head) +
                      position % p.page_positions * p.head_dim;
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const int d = dim + e * kEightStep;
        if (d >= p.head_dim) continue;
        if (whole) {
          LoadEight<T>(keys + d, k[e]);
          LoadEight<T>(keys + to_values + d, v[e]);
        } else {
          LoadSome<T>(keys + d, p.head_dim - d, k[e]);
          LoadSome<T>(keys + to_values + d, p.head_dim - d, v[e]);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      float dot = 0;
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int i = 0; i < 8; ++i) dot = fmaf(q[h][e][i], k[e][i], dot);
      }
#pragma unroll
      for (int offset = 1; offset < kLanes; offset *= 2) {
        dot += __shfl_xor_sync(0xffffffffu, dot, offset);
      }
      if (!inside) continue;
      const float largest = fmaxf(softmax.largest[h], dot);
      const float keep = ScaleOf(softmax.largest[h], largest);
      const float weight = expf(dot - largest);
      softmax.largest[h] = largest;
      softmax.sum[h] = fmaf(softmax.sum[h], keep, weight);
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          softmax.values[h][e][i] = fmaf(softmax.values[h][e][i], keep, weight * v[e][i]);
        }
      }
    }
  }
  // Groups of lanes merge.
#pragma unroll 1
  for (int offset = kLanes; offset < 32; offset *= 2) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      const float other = __shfl_xor_sync(0xffffffffu, softmax.largest[h], offset);
      const float other_sum = __shfl_xor_sync(0xffffffffu, softmax.sum[h], offset);
      const float largest = fmaxf(softmax.largest[h], other);
      const float mine = ScaleOf(softmax.largest[h], largest);
      const float theirs = ScaleOf(other, largest);
      softmax.largest[h] = largest;
      softmax.sum[h] = softmax.sum[h] * mine + other_sum * theirs;
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const float value = __shfl_xor_sync(0xffffffffu, softmax.values[h][e][i], offset);
          softmax.values[h][e][i] = softmax.values[h][e][i] * mine + value * theirs;
        }
      }
    }
  }
  // Warps merge through shared memory.
  __shared__ float warp_largest[kWarps][kHeads];
  __shared__ float warp_sum[kWarps][kHeads];
  extern __shared__ float warp_values[];  // [kWarps][kHeads][value_dim]
  if (group_of_lane == 0) {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (dim == 0) {
        warp_largest[warp][h] = softmax.largest[h];
        warp_sum[warp][h] = softmax.sum[h];
      }
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const int d = dim + e * kEightStep;
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          if (d + i >= value_dim) continue;
          warp_values[(warp * kHeads + h) * value_dim + d + i] = softmax.values[h][e][i];
        }
      }
    }
  }
  __syncthreads();
  // A part's result: [largest, sum, values...] per row, head and part.
  const int stride = value_dim + 2;
  const auto partial_of = [&](int head, int of_part) {
    return p.partial +
           ((static_cast<long long>(row) * p.heads + head) * kMaxAttentionParts + of_part) * stride;
  };
  for (int i = threadIdx.x; i < head_count * value_dim; i += kThreads) {
    const int h = i / value_dim;
    const int d = i % value_dim;
    float largest = -INFINITY;
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, warp_largest[w][h]);
    float sum = 0;
    float value = 0;
    for (int w = 0; w < kWarps; ++w) {
      const float scale = ScaleOf(warp_largest[w][h], largest);
      sum = fmaf(scale, warp_sum[w][h], sum);
      value = fmaf(scale, warp_values[(w * kHeads + h) * value_dim + d], value);
    }
    if (parts == 1) {
      StoreOutput(p, row, (first_head + h) * value_dim + d, value / sum);
    } else {
      float* partial = partial_of(first_head + h, part);
      if (d == 0) {
        __stcg(partial, largest);
        __stcg(partial + 1, sum);
      }
      __stcg(partial + 2 + d, value);
    }
  }
  if (parts == 1) return;
  __threadfence();
  __syncthreads();
  __shared__ bool last;
  if (threadIdx.x == 0) {
    unsigned* arrivals = p.arrivals + static_cast<long long>(row) * gridDim.x + blockIdx.x;
    last = atomicAdd(arrivals, 1u) + 1 == static_cast<unsigned>(parts);
    if (last) *arrivals = 0;
  }
  __syncthreads();
  if (!last) return;
  __threadfence();
  for (int i = threadIdx.x; i < head_count * value_dim; i += kThreads) {
    const int h = i / value_dim;
    const int d = i % value_dim;
    float largest = -INFINITY;
    for (int s = 0; s < parts; ++s) {
      largest = fmaxf(largest, __ldcg(partial_of(first_head + h, s)));
    }
    float sum = 0;
    float value = 0;
    for (int s = 0; s < parts; ++s) {
      const float* partial = partial_of(first_head + h, s);
      const float scale = ScaleOf(__ldcg(partial), largest);
      sum = fmaf(scale, __ldcg(partial + 1), sum);
      value = fmaf(scale, __ldcg(partial + 2 + d), value);
    }
    StoreOutput(p, row, (first_head + h) * value_dim + d, value / sum);
  }
}

template <class T>
void LaunchTyped(const AttentionParams& params, cudaStream_t stream) {
  const int group = params.heads / params.kv_heads;
  const int value_dim = params.latent > 0 ? params.latent : params.head_dim;
  const auto launch = [&]<int kHeads, int kLanes, int kEights = 1>() {
    const int head_blocks = (group + kHeads - 1) / kHeads;
    const size_t shared = sizeof(float) * kWarps * kHeads * static_cast<size_t>(value_dim);
    Launch("the attention kernel", AttentionKernel<T, kHeads, kLanes, kEights>,
           dim3(static_cast<unsigned>(params.kv_heads * head_blocks), kMaxAttentionParts,
                static_cast<unsigned>(params.rows)),
           dim3(kThreads), shared, stream, params);
  };
  const auto with_lanes = [&]<int kHeads>() {
    if (params.head_dim <= 8) return launch.template operator()<kHeads, 1>();
    if (params.head_dim <= 16) return launch.template operator()<kHeads, 2>();
    if (params.head_dim <= 32) return launch.template operator()<kHeads, 4>();
    if (params.head_dim <= 64) return launch.template operator()<kHeads, 8>();
    if (params.head_dim <= 128) return launch.template operator()<kHeads, 16>();
    if (params.head_dim <= 256) return launch.template operator()<kHeads, 32>();
    // More heads than two would not fit in the registers.
    if (params.head_dim <= 512) return launch.template operator()<std::min(kHeads, 2), 32, 2>();
    return launch.template operator()<std::min(kHeads, 2), 32, 3>();
  };
  if (group == 1) return with_lanes.template operator()<1>();
  if (group == 2) return with_lanes.template operator()<2>();
  return with_lanes.template operator()<kMostHeads>();
}

void CheckSizes(const AttentionParams& p) {
  if (p.head_dim > kMostHeadDim) {
    Fail("The CUDA backend's attention needs a head_dim of at most ", kMostHeadDim,
         ", and this model's is ", p.head_dim, "; use --device cpu.");
  }
}

}  // namespace

size_t AttentionScratchFloats(int rows, int heads, int head_dim) {
  return static_cast<size_t>(rows) * static_cast<size_t>(heads) * kMaxAttentionParts *
         static_cast<size_t>(head_dim + 2);
}

size_t AttentionCounters(int rows, int heads) {
  return static_cast<size_t>(rows) * static_cast<size_t>(heads) * kMostAttentionCluster;
}

void LaunchKvAppend(const AttentionParams& unnormed, cudaStream_t stream) {
  CheckSizes(unnormed);
  if (PlacesHeads(unnormed)) return LaunchPlaceHeads(unnormed, stream);
  const AttentionParams params = LaunchQkNorm(unnormed, stream);
  const dim3 grid(static_cast<unsigned>(params.rows));
  if (params.kv_bf16) {
    Launch("the KV append kernel", KvAppendKernel<__nv_bfloat16>, grid, dim3(kThreads), 0, stream,
           params);
  } else {
    Launch("the KV append kernel", KvAppendKernel<float>, grid, dim3(kThreads), 0, stream, params);
  }
}

void LaunchAttention(const AttentionParams& params, cudaStream_t stream) {
  CheckSizes(params);
  if (params.kv_bf16) {
    LaunchTyped<__nv_bfloat16>(params, stream);
  } else {
    LaunchTyped<float>(params, stream);
  }
}

void LaunchAttentionStep(const AttentionParams& params, cudaStream_t stream) {
  if (TakesAttentionStep(params)) {
    LaunchFusedAttentionStep(NormsWholeHeads(params) ? params : LaunchQkNorm(params, stream),
                             stream);
    return;
  }
  LaunchKvAppend(params, stream);
  if (TakesWideAttentionStep(params)) return LaunchWideAttentionStep(params, stream);
  LaunchAttention(params, stream);
}

}  // namespace adder::cuda
