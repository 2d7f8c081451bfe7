// The parts of a matrix-vector product: activations made into tensor-core operands in shared
// memory, and a warp's share of the matrix copied to shared memory and multiplied by them.
//
// Quantised weights stay integers. The 64 activations of a chunk share a scale and become 16-bit
// integers q = 256 high + low, whose bytes are two columns of an integer mma; its eight columns
// are four pairs, and in the pair p only the p-th of four chunks (of four halves of two chunks,
// where scales are one per 32 columns) is not zero. So one accumulator keeps four groups of columns
// apart, lane t of a quad ends up with the p = t-th group's sums, and scales are applied once per
// group, not once per lane.
//
// Weights in floating point are multiplied by activations split into two bf16 numbers.
//
// Shared memory of activations:
//   integers  [chunk][high, low][t][16 bytes], the bytes in the order in which the weights' formats
//             have them, and one f32 per chunk, the largest magnitude
//   bf16      [high, low][columns + kColumnPad]
// and of a span of weights: its chunks as in memory (see packed_matrix.h), then its scales.
#pragma once

#include "cuda/kernels/linear_fragments.cuh"

namespace adder::cuda {

// Distance between columns of bf16 in shared memory, beyond the chunks: lanes of neighbouring
// columns then read different banks.
constexpr int kColumnPad = 32;
constexpr int kActivationBytesPerChunk = 2 * kChunkCols;
// The largest 16-bit integer whose high byte, rounded, fits in eight bits.
constexpr float kLargestQuantized = 32512.0f;

constexpr bool IsQuantized(WeightFormat format) {
  return format == WeightFormat::kQ4 || format == WeightFormat::kQ8;
}
// Chunks that a warp multiplies between two uses of scales.
template <WeightFormat F, bool kWide>
constexpr int kSpanChunks = !IsQuantized(F) ? 1
                            : kWide         ? 2
                                            : 4;
template <WeightFormat F, bool kWide>
constexpr int kSpanDataBytes = kSpanChunks<F, kWide>* LoadsOf(F) * 512;
template <WeightFormat F, bool kWide>
constexpr int kSpanBytes = kSpanDataBytes<F, kWide> +
                           (IsQuantized(F) ? kSpanChunks<F, kWide> * (kWide ? 256 : 64) : 0);

// silu to within a few units of f32's last place.
__device__ __forceinline__ float FastSilu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Not a number if either is.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// The first two of the four columns that a lane of the 16 of a chunk prepares, and the distance of
// the other two: so that the four make one word of the weights' order.
template <WeightFormat F>
struct LaneColumns {
  static constexpr int kSecond = F == WeightFormat::kQ4 ? 4 : 2;
  __device__ static __forceinline__ int First(int lane) {
    const int part = lane % 16;
    return F == WeightFormat::kQ4 ? part / 2 * 8 + part % 2 * 2 : part * 4;
  }
};

// Those four activations of each of a warp's lanes; lanes 0..15 and 16..31 have a chunk each. `to`
// is the chunk's place, into which nothing is written unless `store`.
template <WeightFormat F>
__device__ __forceinline__ void QuantizeActivations(float2 x, float2 y, int lane, bool store,
                                                    unsigned char* to, float* scale) {
  float largest = MaxOrNan(MaxOrNan(fabsf(x.x), fabsf(x.y)), MaxOrNan(fabsf(y.x), fabsf(y.y)));
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    largest = MaxOrNan(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  largest = MaxOrNan(largest, 1e-30f);
  float multiplier;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(multiplier) : "f"(largest));
  multiplier *= kLargestQuantized;
  // 1.5 * 2^23 + 128 + q has q + 128 in its lower bits: byte 1 is the high byte, and byte 0 the low
  // one with its sign bit flipped.
  constexpr float kRound = 12582912.0f + 128.0f;
  const unsigned q0 = __float_as_uint(fmaf(x.x, multiplier, kRound));
  const unsigned q1 = __float_as_uint(fmaf(x.y, multiplier, kRound));
  const unsigned q2 = __float_as_uint(fmaf(y.x, multiplier, kRound));
  const unsigned q3 = __float_as_uint(fmaf(y.y, multiplier, kRound));
  // Columns 0, 4, 1, 5 of a run of eight are one word of 4-bit weights and 2, 6, 3, 7 another;
  // 8-bit ones are in order.
  constexpr bool kQ4 = F == WeightFormat::kQ4;
  const unsigned first = kQ4 ? __byte_perm(q0, q2, 0x5140u) : __byte_perm(q0, q1, 0x5140u);
  const unsigned second = kQ4 ? __byte_perm(q1, q3, 0x5140u) : __byte_perm(q2, q3, 0x5140u);
  if (!store) return;
  const int part = lane % 16;
  const int word = kQ4 ? part % 2 * 2 + part / 8 : part / 8 * 2 + part % 2;
  to += part % 8 / 2 * 16 + word * 4;
  *reinterpret_cast<unsigned*>(to) = __byte_perm(first, second, 0x7632u);
  *reinterpret_cast<unsigned*>(to + kChunkCols) = __byte_perm(first, second, 0x5410u) ^ 0x80808080u;
  if (part == 0) *scale = largest;
}

// Two activations as bf16 numbers and what is left of them, at `to` and `stride` beyond.
__device__ __forceinline__ void SplitActivations(float2 x, __nv_bfloat16* to, int stride) {
  const unsigned high = PackBf16(x.x, x.y);
  *reinterpret_cast<unsigned*>(to) = high;
  *reinterpret_cast<unsigned*>(to + stride) =
      PackBf16(x.x - __uint_as_float(high << 16), x.y - __uint_as_float(high & 0xffff0000u));
}

__device__ __forceinline__ void MmaInteger(int (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                           unsigned a3, unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Copies of 16 bytes from global to shared memory that a thread does not wait for.
__device__ __forceinline__ void CopyAsync(void* to, const void* from) {
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from) : "memory");
}
__device__ __forceinline__ void CommitCopies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Returns when all but the latest kLeft groups of this thread have arrived.
template <int kLeft>
__device__ __forceinline__ void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

// A span: chunks first, first + 1, ... of a tile, of which there are no more than last + 1; those
// beyond repeat the last, and their activations are zeros.
template <WeightFormat F, bool kWide>
struct WeightSpan {
  static constexpr int kChunks = kSpanChunks<F, kWide>;
  static constexpr int kLoads = LoadsOf(F);

  // `place` is tile * chunks of matrix number `matrix`.
  __device__ static __forceinline__ void Copy(const PackedMatrix& m, int matrix, int place,
                                              int first, int last, int lane, unsigned char* to) {
    const uint4* data = m.data + matrix * m.data_stride + lane;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const uint4* from =
          data + static_cast<long long>(place + min(first + j, last)) * (kLoads * 32);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        CopyAsync(to + ((j * kLoads + i) * 32 + lane) * 16, from + i * 32);
      }
    }
    if constexpr (IsQuantized(F)) {
      // Lanes per chunk.
      constexpr int kLanes = kWide ? 16 : 4;
      const unsigned char* from =
          static_cast<const unsigned char*>(m.scales) + matrix * m.scales_stride;
      const int chunk = place + min(first + lane / kLanes, last);
      if (lane < kChunks * kLanes) {
        CopyAsync(to + kSpanDataBytes<F, kWide> + lane * 16,
                  from + (static_cast<long long>(chunk) * kLanes + lane % kLanes) * 16);
      }
    }
  }

  // sums[r] += this lane's share of row g + 8 r; the shares of the lanes of a quad add up to it.
  // `zeros` points to 16 bytes of zeros.
  __device__ static __forceinline__ void Multiply(const unsigned char* weights,
                                                  const unsigned char* activations,
                                                  const float* largest, int stride,
                                                  const unsigned char* zeros, int span, int lane,
                                                  ScaleFormat format, float (&sums)[2]) {
    const int g = lane / 4;
    const int t = lane % 4;
    const uint4* data = reinterpret_cast<const uint4*>(weights) + lane;
    if constexpr (!IsQuantized(F)) {
      unsigned b[4][2] = {};
      if (g < 2) {
        const uint4* from =
            reinterpret_cast<const uint4*>(reinterpret_cast<const __nv_bfloat16*>(activations) +
                                           g * stride + span * kChunkCols + 8 * t);
        const uint4 first = from[0];
        const uint4 second = from[4];
        b[0][0] = first.x, b[0][1] = first.y, b[1][0] = first.z, b[1][1] = first.w;
        b[2][0] = second.x, b[2][1] = second.y, b[3][0] = second.z, b[3][1] = second.w;
      }
      uint4 raw[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) raw[i] = data[i * 32];
      float acc[4] = {};
#pragma unroll
      for (int part = 0; part < Fragment<F>::kParts; ++part) {
        unsigned a[4][4];
        Fragment<F>::template Expand<false>(raw, part, a);
#pragma unroll
        for (int i = 0; i < 4; ++i) Mma(acc, a[i], b[i]);
      }
      sums[0] += acc[0] + acc[1];
      sums[1] += acc[2] + acc[3];
    } else {
      // This lane's column g: part g % 2 of group g / 2.
      const int own_chunk = kWide ? g / 4 : g / 2;
      const unsigned char* own = activations +
                                 (span * kChunks + own_chunk) * kActivationBytesPerChunk +
                                 g % 2 * kChunkCols + 16 * t;
      // Where scales are one per half a chunk, only a half: see packed_matrix.h for which words are
      // which half's.
      const bool upper = g / 2 % 2 != 0;
      const auto half = [&](uint4 b) {
        if constexpr (kWide) {
          if (F == WeightFormat::kQ4) {
            (upper ? b.x : b.y) = 0;
            (upper ? b.z : b.w) = 0;
          } else {
            (upper ? b.x : b.z) = 0;
            (upper ? b.y : b.w) = 0;
          }
        }
        return b;
      };
      int ones[4] = {};
      int low[4] = {};
      int high[4] = {};
      const uint4 mine = half(*reinterpret_cast<const uint4*>(own));
      constexpr unsigned kOnes = 0x01010101u;
      MmaInteger(ones, kOnes, kOnes, kOnes, kOnes, mine.x, mine.y);
      MmaInteger(ones, kOnes, kOnes, kOnes, kOnes, mine.z, mine.w);
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        const bool is_own = own_chunk == j;
        const uint4 b = make_uint4(is_own ? mine.x : 0, is_own ? mine.y : 0, is_own ? mine.z : 0,
                                   is_own ? mine.w : 0);
        if constexpr (F == WeightFormat::kQ4) {
          constexpr unsigned kLow = 0x0f0f0f0fu;
          constexpr unsigned kHigh = 0xf0f0f0f0u;
          const uint4 w = data[j * 32];
          MmaInteger(low, w.x & kLow, w.y & kLow, w.z & kLow, w.w & kLow, b.x, b.y);
          MmaInteger(high, w.x & kHigh, w.y & kHigh, w.z & kHigh, w.w & kHigh, b.z, b.w);
        } else {
          const uint4 w = data[j * 64];
          const uint4 v = data[j * 64 + 32];
          MmaInteger(low, w.x, w.y, w.z, w.w, b.x, b.y);
          MmaInteger(high, v.x, v.y, v.z, v.w, b.z, b.w);
        }
      }
      // The upper four bits of a byte are sixteen times their value: everything is times sixteen.
      constexpr int kTimes = F == WeightFormat::kQ4 ? 16 : 1;
      const float unit = largest[span * kChunks + (kWide ? t / 2 : t)] *
                         (1.0f / (kLargestQuantized * static_cast<float>(kTimes)));
      const float sum = static_cast<float>(ones[0] * (256 * kTimes) + ones[1] * kTimes);
      const unsigned char* scales = weights + kSpanDataBytes<F, kWide>;
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int whole = low[2 * r] * kTimes + high[2 * r];
        const int rest = low[2 * r + 1] * kTimes + high[2 * r + 1];
        const float product = static_cast<float>(whole * 256 + rest);
        const float2 pair = ScaleAndBias(scales, t * kTileRows + g + 8 * r, format);
        sums[r] = fmaf(unit, fmaf(pair.x, product, pair.y * sum), sums[r]);
      }
    }
  }

  // Number `index` of a span's pairs.
  __device__ static __forceinline__ float2 ScaleAndBias(const unsigned char* scales, int index,
                                                        ScaleFormat format) {
    if constexpr (kWide) {
      return reinterpret_cast<const float2*>(scales)[index];
    } else {
      const unsigned pair = reinterpret_cast<const unsigned*>(scales)[index];
      if (format == ScaleFormat::kCompactBf16) {
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
      }
      return make_float2(__half2float(__ushort_as_half(static_cast<unsigned short>(pair))),
                         __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16))));
    }
  }
};

}  // namespace adder::cuda
