// What the matrix kernels share: weights as tensor-core operands, and the choice of experts.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/packed_matrix.h"

namespace adder::cuda {

__device__ __forceinline__ unsigned PackBf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ float RoundBf16(float x) {
  return __bfloat162float(__float2bfloat16_rn(x));
}

__device__ __forceinline__ void Mma(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ unsigned Component(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

// What 4-bit values are raised by on their way into bf16: see Fragment::Pair.
constexpr float kOffset = 128.0f;

__device__ __forceinline__ float Silu(float x) { return x / (1.0f + expf(-x)); }

// Weights of one tile and chunk as the A operands of four mma: a[instruction][register]. Register
// 2 * q + r holds row g + 8 r at the q-th pair of columns.
template <WeightFormat F>
struct Fragment {
  static constexpr int kLoads = LoadsOf(F);
  static constexpr bool kQuantized = F == WeightFormat::kQ4 || F == WeightFormat::kQ8;
  // bf16 parts that a weight is split into.
  static constexpr int kParts = F == WeightFormat::kF16 ? 2 : F == WeightFormat::kF32 ? 3 : 1;

  // kExact: quantised values enter as they are. Otherwise 4-bit ones enter as kOffset + q, which is
  // cheaper and costs a few bits of the sums.
  template <bool kExact>
  __device__ static __forceinline__ void Expand(const uint4 (&raw)[kLoads], int part,
                                                unsigned (&a)[4][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          a[2 * h + pair / 2][2 * (pair % 2) + r] = Pair<kExact>(raw, part, h, r, pair);
        }
      }
    }
  }

 private:
  __device__ static __forceinline__ float Part(float x, int part) {
    if (part >= 1) x -= RoundBf16(x);
    if (part >= 2) x -= RoundBf16(x);
    return x;
  }

  template <bool kExact>
  __device__ static __forceinline__ unsigned Pair(const uint4 (&raw)[kLoads], int part, int h,
                                                  int r, int pair) {
    if constexpr (F == WeightFormat::kQ4) {
      // 0x4300 | q is 128 + q in bf16.
      unsigned both = (Component(raw[0], 2 * h + r) >> (4 * pair) & 0x000f000fu) | 0x43004300u;
      if constexpr (kExact) {
        const __nv_bfloat162 offset = __floats2bfloat162_rn(kOffset, kOffset);
        const __nv_bfloat162 value =
            __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&both), offset);
        both = *reinterpret_cast<const unsigned*>(&value);
      }
      return both;
    } else if constexpr (F == WeightFormat::kQ8) {
      const unsigned word = Component(raw[h], 2 * (pair / 2) + r);
      // 0x4b0000qq is 2^23 + q in f32; eight bits of q fit in the upper half of its f32.
      const float low =
          __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u | (pair % 2 * 2))) - 8388608.0f;
      const float high =
          __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7650u | (pair % 2 * 2 + 1))) -
          8388608.0f;
      return __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632u);
    } else if constexpr (F == WeightFormat::kBf16) {
      return Component(raw[2 * h + r], pair);
    } else if constexpr (F == WeightFormat::kF16) {
      const unsigned word = Component(raw[2 * h + r], pair);
      const float2 both = __half22float2(*reinterpret_cast<const __half2*>(&word));
      return PackBf16(Part(both.x, part), Part(both.y, part));
    } else {
      const uint4& four = raw[4 * h + 2 * r + pair / 2];
      const float x = __uint_as_float(Component(four, pair % 2 * 2));
      const float y = __uint_as_float(Component(four, pair % 2 * 2 + 1));
      return PackBf16(Part(x, part), Part(y, part));
    }
  }
};

// Scales and biases of rows g and g + 8 of a tile and chunk: see packed_matrix.h.
template <bool kWide>
struct ScalePairs {
  unsigned words[kWide ? 8 : 2];

  // `place` is tile * chunks + chunk.
  __device__ __forceinline__ void Load(const void* scales, long long place, int g) {
    if constexpr (kWide) {
      const uint2* pairs = static_cast<const uint2*>(scales) + place * 2 * kTileRows;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          const uint2 pair = __ldg(pairs + h * kTileRows + g + 8 * r);
          words[4 * h + 2 * r] = pair.x;
          words[4 * h + 2 * r + 1] = pair.y;
        }
      }
    } else {
      const unsigned* pairs = static_cast<const unsigned*>(scales) + place * kTileRows;
      words[0] = __ldg(pairs + g);
      words[1] = __ldg(pairs + g + 8);
    }
  }

  // Scale and bias of row g + 8 r; for wide ones, of columns 32 h to 32 h + 31 of the chunk.
  __device__ __forceinline__ float2 Get(int h, int r, ScaleFormat format) const {
    if constexpr (kWide) {
      return make_float2(__uint_as_float(words[4 * h + 2 * r]),
                         __uint_as_float(words[4 * h + 2 * r + 1]));
    } else {
      const unsigned pair = words[r];
      if (format == ScaleFormat::kCompactBf16) {
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
      }
      return make_float2(__half2float(__ushort_as_half(static_cast<unsigned short>(pair))),
                         __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16))));
    }
  }
};

// acc += tile x b for one chunk. acc has rows g, g + 8 and columns 2 t, 2 t + 1 as mma leaves them;
// `sums` holds the sums of b over the chunk (or its halves) in the same layout, for quantised
// weights.
template <WeightFormat F, bool kWide, bool kExact>
__device__ __forceinline__ void MultiplyTile(const unsigned (&a)[4][4], const unsigned (&b)[4][2],
                                             const float (&sums)[2][4],
                                             const ScalePairs<kWide>& pairs, ScaleFormat format,
                                             float (&acc)[4]) {
  if constexpr (!Fragment<F>::kQuantized) {
#pragma unroll
    for (int j = 0; j < 4; ++j) Mma(acc, a[j], b[j]);
  } else {
    float products[2][4] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j) Mma(products[kWide ? j / 2 : 0], a[j], b[j]);
#pragma unroll
    for (int h = 0; h < (kWide ? 2 : 1); ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 pair = pairs.Get(h, r, format);
        const float offset =
            fmaf(F == WeightFormat::kQ4 && !kExact ? -kOffset : 0.0f, pair.x, pair.y);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          acc[2 * r + c] = fmaf(pair.x, products[h][2 * r + c], acc[2 * r + c]);
          acc[2 * r + c] = fmaf(offset, sums[h][c], acc[2 * r + c]);
        }
      }
    }
  }
}

// The sums that MultiplyTile needs: an mma with ones.
template <WeightFormat F, bool kWide>
__device__ __forceinline__ void SumColumns(const unsigned (&b)[4][2], float (&sums)[2][4]) {
  if constexpr (Fragment<F>::kQuantized) {
    const unsigned ones[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
#pragma unroll
    for (int j = 0; j < 4; ++j) Mma(sums[kWide ? j / 2 : 0], ones, b[j]);
  }
}

struct KernelParams {
  LinearParams linear;
  const float* routing;
  int routing_stride;
  int expert_top_k;
  int column_warps;
  // Of the matrix-vector kernel.
  int row_warps;
  int groups;
  float inverse_cols;
  int head_step;  // of kHeads: from one matrix's columns of the input to the next one's
};

// Writes one lane's part of a finished tile: the values of rows g and g + 8 for one token. `old` is
// what is added to.
template <LinearEpilogue kEpilogue>
__device__ __forceinline__ void StoreRows(const LinearParams& p, float* output, int tile, int g,
                                          int token, float low, float high, float2 old) {
  const PackedMatrix& m = p.matrix;
  constexpr bool kRule = kEpilogue == LinearEpilogue::kRule;
  // Only gated projections are interleaved.
  const bool interleaved = kRule ? m.interleaved : kEpilogue == LinearEpilogue::kSiluMul;
  const int low_row = LogicalRow(interleaved, m.rows, tile, g);
  const int high_row = LogicalRow(interleaved, m.rows, tile, g + 8);
  const bool has_low = low_row < m.rows;
  const bool has_high = high_row < m.rows;
  if (kRule && p.rule.factors != nullptr) {
    if (has_low) low *= p.rule.factors[low_row];
    if (has_high) high *= p.rule.factors[high_row];
  }
  if (p.bias != nullptr) {
    if (has_low) low += p.bias[low_row];
    if (has_high) high += p.bias[high_row];
  }
  float* out = output + static_cast<long long>(token) * p.output_stride;
  if constexpr (kEpilogue == LinearEpilogue::kRouter) {
    float* scores = p.scores + static_cast<long long>(token) * m.rows;
    if (has_low) __stcg(scores + low_row, low);
    if (has_high) __stcg(scores + high_row, high);
  } else if constexpr (kEpilogue == LinearEpilogue::kSiluMul) {
    if (has_low) out[low_row] = Silu(low) * high;
  } else {
    if constexpr (kRule) {
      if (interleaved) {
        if (has_low) out[low_row] = Activate(p.rule.activation, low) * high;
        return;
      }
      if (p.rule.activates) {
        low = Activate(p.rule.activation, low);
        high = Activate(p.rule.activation, high);
      }
    }
    if (has_low) out[low_row] = fmaf(p.scale, low, old.x);
    if (has_high) out[high_row] = fmaf(p.scale, high, old.y);
  }
}

// What StoreRows adds to.
template <LinearEpilogue kEpilogue>
__device__ __forceinline__ float2 LoadOld(const LinearParams& p, const float* output, int tile,
                                          int g, int token) {
  float2 old = make_float2(0, 0);
  if (kEpilogue == LinearEpilogue::kRule ? !p.rule.adds : kEpilogue != LinearEpilogue::kAdd) {
    return old;
  }
  const PackedMatrix& m = p.matrix;
  const float* out = output + static_cast<long long>(token) * p.output_stride;
  const int low_row = LogicalRow(m.interleaved, m.rows, tile, g);
  const int high_row = LogicalRow(m.interleaved, m.rows, tile, g + 8);
  if (low_row < m.rows) old.x = out[low_row];
  if (high_row < m.rows) old.y = out[high_row];
  return old;
}

// Chooses the experts of one token by the threads of one warp: the largest scores, the lowest index
// of equals; weights are the softmax over the chosen.
__device__ inline void ChooseExperts(const float* scores, int experts, int top_k, float* out) {
  // Scores of this lane's experts, lane + 32 * i; those beyond kKept are read again each round.
  constexpr int kKept = 4;
  const int lane = threadIdx.x % 32;
  float kept[kKept];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    kept[i] = lane + 32 * i < experts ? __ldcg(scores + lane + 32 * i) : 0.0f;
  }
  float largest = 0;
  float sum = 0;
  float last_score = INFINITY;
  int last_index = -1;
#pragma unroll 1
  for (int j = 0; j < top_k; ++j) {
    float best = -INFINITY;
    int best_index = experts;
    const auto consider = [&](float score, int e) {
      // Only what ranks behind the last choice.
      if (e >= experts || score > last_score || (score == last_score && e <= last_index)) return;
      if (score > best || best_index == experts) {
        best = score;
        best_index = e;
      }
    };
#pragma unroll
    for (int i = 0; i < kKept; ++i) consider(kept[i], lane + 32 * i);
#pragma unroll 1
    for (int e = lane + 32 * kKept; e < experts; e += 32) consider(__ldcg(scores + e), e);
#pragma unroll 1
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(0xffffffffu, best, offset);
      const int other_index = __shfl_xor_sync(0xffffffffu, best_index, offset);
      if (other_index < experts &&
          (best_index == experts || other > best || (other == best && other_index < best_index))) {
        best = other;
        best_index = other_index;
      }
    }
    // Scores that are not numbers rank nowhere; what is left gives expert 0 no weight.
    if (best_index == experts) best_index = 0;
    last_score = best;
    last_index = best_index;
    if (j == 0) largest = best;
    const float weight = expf(best - largest);
    sum += weight;
    if (lane == 0) {
      out[j] = weight;
      out[top_k + j] = static_cast<float>(best_index);
    }
  }
  __syncwarp();
  for (int j = lane; j < top_k; j += 32) out[j] /= sum;
}

// Whether this is the last block of a row of the grid that gets here, and sees what others wrote
// before. `arrivals` is zero before and after.
__device__ inline bool ArrivesLast(unsigned* arrivals) {
  __threadfence();
  __syncthreads();
  __shared__ bool last;
  if (threadIdx.x == 0) {
    last = atomicAdd(arrivals, 1u) + 1 == gridDim.x;
    if (last) *arrivals = 0;
  }
  __syncthreads();
  if (last) __threadfence();
  return last;
}

// The end of a router's kernel: the last block to have written its scores chooses the experts of
// tokens [first, end). `arrivals` is these tokens' counter.
__device__ inline void RouteWhenLast(const LinearParams& p, float* output, int first, int end,
                                     unsigned* arrivals) {
  if (!ArrivesLast(arrivals)) return;
  const int warps = static_cast<int>(blockDim.x / 32);
  for (int token = first + static_cast<int>(threadIdx.x / 32); token < end; token += warps) {
    ChooseExperts(p.scores + static_cast<long long>(token) * p.matrix.rows, p.matrix.rows, p.top_k,
                  output + static_cast<long long>(token) * p.output_stride);
  }
}

}  // namespace adder::cuda
