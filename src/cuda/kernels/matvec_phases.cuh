// The parts of a matrix-vector product: activations made into tensor-core operands in shared
// memory, and a warp's share of the matrix multiplied by them.
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
//             have them, then one f32 scale per chunk
//   bf16      [high, low][columns + kColumnPad]
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

// silu to within a few units of f32's last place.
__device__ __forceinline__ float FastSilu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

// Not a number if either is.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
}

// Four activations of each of a warp's lanes; lanes 0..15 and 16..31 have a chunk each, beginning
// at `chunk`, of which those with `store` are kept.
template <WeightFormat F>
__device__ __forceinline__ void QuantizeActivations(float4 x, int chunk, bool store, int lane,
                                                    unsigned char* activations, float* scales) {
  float largest = MaxOrNan(MaxOrNan(fabsf(x.x), fabsf(x.y)), MaxOrNan(fabsf(x.z), fabsf(x.w)));
#pragma unroll
  for (int offset = 8; offset > 0; offset /= 2) {
    largest = MaxOrNan(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  }
  largest = MaxOrNan(largest, 1e-30f);
  float multiplier;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(multiplier) : "f"(largest));
  multiplier *= kLargestQuantized;
  // 1.5 * 2^23 + q has q in its lower bits.
  constexpr float kRound = 12582912.0f;
  const unsigned q[4] = {__float_as_uint(fmaf(x.x, multiplier, kRound)),
                         __float_as_uint(fmaf(x.y, multiplier, kRound)),
                         __float_as_uint(fmaf(x.z, multiplier, kRound)),
                         __float_as_uint(fmaf(x.w, multiplier, kRound))};
  // Byte 1 of q + 128 is the high byte, byte 0 of q the low one, as signed numbers.
  // low_i, low_j, high_i, high_j of a pair:
  const auto pack = [&](int i, int j) {
    const unsigned low = __byte_perm(q[i], q[j], 0x0040u);
    const unsigned high = __byte_perm(q[i] + 128, q[j] + 128, 0x0051u);
    return __byte_perm(low, high, 0x5410u);
  };
  const unsigned first = pack(0, 1);
  const unsigned second = pack(2, 3);
  const int part = lane % 16;
  const int h = part / 8;
  const int t = part % 8 / 2;
  const bool odd = part % 2 != 0;
  unsigned low;
  unsigned high;
  int word;
  if constexpr (F == WeightFormat::kQ4) {
    // Columns 0, 4, 1, 5 of a run of eight are one word and 2, 6, 3, 7 another: even lanes have 0
    // to 3 and make the first, odd ones have 4 to 7.
    const unsigned kept = odd ? second : first;
    const unsigned other = __shfl_xor_sync(0xffffffffu, odd ? first : second, 1);
    const unsigned a = odd ? other : kept;
    const unsigned b = odd ? kept : other;
    low = __byte_perm(a, b, 0x5140u);
    high = __byte_perm(a, b, 0x7362u);
    word = 2 * odd + h;
  } else {
    low = __byte_perm(first, second, 0x5410u);
    high = __byte_perm(first, second, 0x7632u);
    word = 2 * h + odd;
  }
  if (!store) return;
  unsigned char* to = activations + chunk * kActivationBytesPerChunk + 16 * t + 4 * word;
  *reinterpret_cast<unsigned*>(to) = high;
  *reinterpret_cast<unsigned*>(to + kChunkCols) = low;
  if (part == 0) scales[chunk] = largest * (1.0f / kLargestQuantized);
}

// Four activations as bf16 numbers and what is left of them, at `columns` and `stride` beyond.
__device__ __forceinline__ void SplitActivations(float4 x, __nv_bfloat16* columns, int stride) {
  const uint2 high = make_uint2(PackBf16(x.x, x.y), PackBf16(x.z, x.w));
  x.x -= __uint_as_float(high.x << 16);
  x.y -= __uint_as_float(high.x & 0xffff0000u);
  x.z -= __uint_as_float(high.y << 16);
  x.w -= __uint_as_float(high.y & 0xffff0000u);
  *reinterpret_cast<uint2*>(columns) = high;
  *reinterpret_cast<uint2*>(columns + stride) = make_uint2(PackBf16(x.x, x.y), PackBf16(x.z, x.w));
}

__device__ __forceinline__ void MmaInteger(int (&c)[4], unsigned a0, unsigned a1, unsigned a2,
                                           unsigned a3, unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// A span of a tile's chunks in registers.
template <WeightFormat F, bool kWide>
struct WeightSpan {
  static constexpr int kChunks = kSpanChunks<F, kWide>;
  static constexpr int kLoads = LoadsOf(F);
  uint4 raw[kChunks][kLoads];
  uint2 scales[2];  // rows g and g + 8, the t-th group; compact ones in x

  // Chunks first, first + 1, ... of a tile, of which there are no more than last + 1; those beyond
  // repeat the last, and their activations are zeros. `place` is tile * chunks of `matrix`.
  __device__ __forceinline__ void Load(const PackedMatrix& m, int matrix, int place, int first,
                                       int last, int lane) {
    const uint4* data = m.data + matrix * m.data_stride + lane;
#pragma unroll
    for (int j = 0; j < kChunks; ++j) {
      const uint4* from =
          data + static_cast<long long>(place + min(first + j, last)) * (kLoads * 32);
#pragma unroll
      for (int i = 0; i < kLoads; ++i) raw[j][i] = __ldcs(from + i * 32);
    }
    if constexpr (IsQuantized(F)) {
      const int g = lane / 4;
      const int t = lane % 4;
      const unsigned char* from =
          static_cast<const unsigned char*>(m.scales) + matrix * m.scales_stride;
      const long long chunk = place + min(first + (kWide ? t / 2 : t), last);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        if constexpr (kWide) {
          scales[r] = __ldcs(reinterpret_cast<const uint2*>(from) +
                             (chunk * 2 + t % 2) * kTileRows + g + 8 * r);
        } else {
          scales[r].x =
              __ldcs(reinterpret_cast<const unsigned*>(from) + chunk * kTileRows + g + 8 * r);
        }
      }
    }
  }

  // sums[r] += this lane's share of row g + 8 r; the shares of the lanes of a quad add up to it.
  __device__ __forceinline__ void Multiply(const unsigned char* activations,
                                           const float* activation_scales, int stride, int span,
                                           int lane, ScaleFormat format, float (&sums)[2]) const {
    const int g = lane / 4;
    const int t = lane % 4;
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
      float acc[4] = {};
#pragma unroll
      for (int part = 0; part < Fragment<F>::kParts; ++part) {
        unsigned a[4][4];
        Fragment<F>::template Expand<false>(raw[0], part, a);
#pragma unroll
        for (int i = 0; i < 4; ++i) Mma(acc, a[i], b[i]);
      }
      sums[0] += acc[0] + acc[1];
      sums[1] += acc[2] + acc[3];
    } else {
      // This lane's column g: part g % 2 of group g / 2.
      const int own_chunk = kWide ? g / 4 : g / 2;
      uint4 own = *reinterpret_cast<const uint4*>(
          activations + (span * kChunks + own_chunk) * kActivationBytesPerChunk +
          g % 2 * kChunkCols + 16 * t);
      if constexpr (kWide) {
        // Only a half of the chunk: see packed_matrix.h for which words are which half's.
        const bool upper = g / 2 % 2 != 0;
        if (F == WeightFormat::kQ4) {
          (upper ? own.x : own.y) = 0;
          (upper ? own.z : own.w) = 0;
        } else {
          (upper ? own.x : own.z) = 0;
          (upper ? own.y : own.w) = 0;
        }
      }
      int ones[4] = {};
      constexpr unsigned kOnes = 0x01010101u;
      MmaInteger(ones, kOnes, kOnes, kOnes, kOnes, own.x, own.y);
      MmaInteger(ones, kOnes, kOnes, kOnes, kOnes, own.z, own.w);
      int low[4] = {};
      int high[4] = {};
#pragma unroll
      for (int j = 0; j < kChunks; ++j) {
        const bool mine = own_chunk == j;
        const uint4 b = mine ? own : make_uint4(0, 0, 0, 0);
        if constexpr (F == WeightFormat::kQ4) {
          constexpr unsigned kLow = 0x0f0f0f0fu;
          constexpr unsigned kHigh = 0xf0f0f0f0u;
          const uint4& w = raw[j][0];
          MmaInteger(low, w.x & kLow, w.y & kLow, w.z & kLow, w.w & kLow, b.x, b.y);
          MmaInteger(high, w.x & kHigh, w.y & kHigh, w.z & kHigh, w.w & kHigh, b.z, b.w);
        } else {
          MmaInteger(low, raw[j][0].x, raw[j][0].y, raw[j][0].z, raw[j][0].w, b.x, b.y);
          MmaInteger(high, raw[j][1].x, raw[j][1].y, raw[j][1].z, raw[j][1].w, b.z, b.w);
        }
      }
      const float activation_scale = activation_scales[span * kChunks + (kWide ? t / 2 : t)];
      const float sum = static_cast<float>(ones[0] * 256 + ones[1]);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        // The upper four bits of a byte are sixteen times their value.
        constexpr bool kQ4 = F == WeightFormat::kQ4;
        const int whole = kQ4 ? low[2 * r] * 16 + high[2 * r] : low[2 * r] + high[2 * r];
        const int rest =
            kQ4 ? low[2 * r + 1] * 16 + high[2 * r + 1] : low[2 * r + 1] + high[2 * r + 1];
        const float product = static_cast<float>(whole * 256 + rest) * (kQ4 ? 0.0625f : 1.0f);
        const float2 pair = ScaleAndBias(scales[r], format);
        sums[r] = fmaf(activation_scale, fmaf(pair.x, product, pair.y * sum), sums[r]);
      }
    }
  }

 private:
  __device__ static __forceinline__ float2 ScaleAndBias(uint2 words, ScaleFormat format) {
    if constexpr (kWide) return make_float2(__uint_as_float(words.x), __uint_as_float(words.y));
    const unsigned pair = words.x;
    if (format == ScaleFormat::kCompactBf16) {
      return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    }
    return make_float2(__half2float(__ushort_as_half(static_cast<unsigned short>(pair))),
                       __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16))));
  }
};

}  // namespace adder::cuda
