// The parts of a product of a matrix and two to eight tokens: activations made into tensor-core
// operands, a chunk of a tile multiplied by them, and finished outputs.
//
// Quantised weights stay integers. As for one token (see matvec_phases.cuh) the 64 activations of a
// chunk share a scale and become 16-bit integers q = 256 high + low; but here a column of an
// integer mma is a token, high and low bytes are multiplied apart, and a chunk's sums (where scales
// are one per 32 columns: those of its halves) are scaled as they come. With w = scale * u + bias,
// u being what is multiplied, the bias meets the sum of a token's integers, which is found once per
// token and chunk. Weights in floating point meet activations split into two bf16 numbers.
//
// Shared memory of operands, `places` being the tokens for which there is room:
//   integers  [chunk][high, low][place][64 bytes], the bytes in the order in which the weights'
//             formats have them; per chunk and place a unit (what an integer is worth) and the
//             integers' sums times it
//   bf16      [chunk][high, low][half of the columns][place][64 bytes]
#pragma once

#include "cuda/kernels/matvec_phases.cuh"

namespace adder::cuda {

// Bytes of an operand of one token and chunk.
constexpr int OperandBytes(WeightFormat format) { return (IsQuantized(format) ? 2 : 4) * 64; }

// As MmaInteger, for 16 columns.
__device__ __forceinline__ void MmaHalf(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// The operands that lane t of a quad has of a token and chunk: its columns 8 t + i and 32 + 8 t + i
// (see packed_matrix.h), x[i] and x[8 + i].
struct Integers {
  uint4 high;
  uint4 low;
  float largest;
  int sums[2];  // of the quad's integers, of 32 columns each
};

template <WeightFormat F>
__device__ __forceinline__ Integers MakeIntegers(const float (&x)[16]) {
  Integers result;
  float most[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    most[i] = MaxOrNan(MaxOrNan(fabsf(x[i]), fabsf(x[i + 4])),
                       MaxOrNan(fabsf(x[i + 8]), fabsf(x[i + 12])));
  }
  float largest =
      MaxOrNan(MaxOrNan(MaxOrNan(most[0], most[1]), MaxOrNan(most[2], most[3])), 1e-30f);
  largest = MaxOrNan(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = MaxOrNan(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  result.largest = largest;
  float multiplier;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(multiplier) : "f"(largest));
  multiplier *= kLargestQuantized;
  // 1.5 * 2^23 + 128 + q has q + 128 in its lower bits: byte 1 is the high byte, and byte 0 the low
  // one with its sign bit flipped.
  constexpr float kRound = 12582912.0f + 128.0f;
  constexpr unsigned kRoundBits = 0x4b400000u + 128u;
  const auto pack = [&](const unsigned(&q)[8], int a, int b, int c, int d, unsigned& high,
                        unsigned& low) {
    const unsigned first = __byte_perm(q[a], q[b], 0x5140u);
    const unsigned second = __byte_perm(q[c], q[d], 0x5140u);
    high = __byte_perm(first, second, 0x7632u);
    low = __byte_perm(first, second, 0x5410u) ^ 0x80808080u;
  };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned q[8];
    unsigned sum = 0u - 8u * kRoundBits;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[i] = __float_as_uint(fmaf(x[8 * h + i], multiplier, kRound));
      sum += q[i];
    }
    if constexpr (F == WeightFormat::kQ4) {
      pack(q, 0, 4, 1, 5, h == 0 ? result.high.x : result.high.y,
           h == 0 ? result.low.x : result.low.y);
      pack(q, 2, 6, 3, 7, h == 0 ? result.high.z : result.high.w,
           h == 0 ? result.low.z : result.low.w);
    } else {
      pack(q, 0, 1, 2, 3, h == 0 ? result.high.x : result.high.z,
           h == 0 ? result.low.x : result.low.z);
      pack(q, 4, 5, 6, 7, h == 0 ? result.high.y : result.high.w,
           h == 0 ? result.low.y : result.low.w);
    }
    result.sums[h] = static_cast<int>(sum);
  }
  return result;
}

// acc += a chunk of a tile times eight tokens, in the layout of products: rows g, g + 8 and places
// 2 t, 2 t + 1. `operands`, `units` and `sums` are the chunk's.
template <WeightFormat F, bool kWide>
__device__ __forceinline__ void MultiplyChunk(const unsigned char* weights,
                                              const unsigned char* operands, const float* units,
                                              const float* sums, int places, int lane,
                                              ScaleFormat format, float (&acc)[4]) {
  const int g = lane / 4;
  const int t = lane % 4;
  const uint4* data = reinterpret_cast<const uint4*>(weights) + lane;
  // Columns without a token repeat others.
  const uint4* own = reinterpret_cast<const uint4*>(operands) + (g & (places - 1)) * 4 + t;
  if constexpr (!IsQuantized(F)) {
    unsigned b[2][4][2];
#pragma unroll
    for (int rest = 0; rest < 2; ++rest) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4 word = own[(2 * rest + h) * places * 4];
        b[rest][2 * h][0] = word.x, b[rest][2 * h][1] = word.y;
        b[rest][2 * h + 1][0] = word.z, b[rest][2 * h + 1][1] = word.w;
      }
    }
    uint4 raw[LoadsOf(F)];
#pragma unroll
    for (int i = 0; i < LoadsOf(F); ++i) raw[i] = data[i * 32];
    float rest[4] = {};
#pragma unroll
    for (int part = 0; part < Fragment<F>::kParts; ++part) {
      unsigned a[4][4];
      Fragment<F>::template Expand<false>(raw, part, a);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Mma(acc, a[i], b[0][i]);
        Mma(rest, a[i], b[1][i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[i] += rest[i];
  } else {
    constexpr int kGroups = kWide ? 2 : 1;
    const uint4 high = own[0];
    const uint4 low = own[places * 4];
    int whole[kGroups][4] = {};
    int rest[kGroups][4] = {};
    if constexpr (F == WeightFormat::kQ4) {
      constexpr unsigned kMask = 0x0f0f0f0fu;
      const uint4 w = data[0];
      const uint4 a = make_uint4(w.x & kMask, w.y & kMask, w.z & kMask, w.w & kMask);
      const uint4 b =
          make_uint4(w.x >> 4 & kMask, w.y >> 4 & kMask, w.z >> 4 & kMask, w.w >> 4 & kMask);
      if constexpr (kWide) {
        MmaHalf(whole[0], a.x, a.y, high.x);
        MmaHalf(whole[1], a.z, a.w, high.y);
        MmaHalf(rest[0], a.x, a.y, low.x);
        MmaHalf(rest[1], a.z, a.w, low.y);
        MmaHalf(whole[0], b.x, b.y, high.z);
        MmaHalf(whole[1], b.z, b.w, high.w);
        MmaHalf(rest[0], b.x, b.y, low.z);
        MmaHalf(rest[1], b.z, b.w, low.w);
      } else {
        MmaInteger(whole[0], a.x, a.y, a.z, a.w, high.x, high.y);
        MmaInteger(rest[0], a.x, a.y, a.z, a.w, low.x, low.y);
        MmaInteger(whole[0], b.x, b.y, b.z, b.w, high.z, high.w);
        MmaInteger(rest[0], b.x, b.y, b.z, b.w, low.z, low.w);
      }
    } else {
      // A load is half a chunk.
      const uint4 a = data[0];
      const uint4 b = data[32];
      MmaInteger(whole[0], a.x, a.y, a.z, a.w, high.x, high.y);
      MmaInteger(rest[0], a.x, a.y, a.z, a.w, low.x, low.y);
      MmaInteger(whole[kGroups - 1], b.x, b.y, b.z, b.w, high.z, high.w);
      MmaInteger(rest[kGroups - 1], b.x, b.y, b.z, b.w, low.z, low.w);
    }
    const int place = 2 * t & (places - 1);
    const float2 unit = *reinterpret_cast<const float2*>(units + place);
    using Span = WeightSpan<F, kWide>;
    const auto* pairs = reinterpret_cast<const typename Span::Pair*>(weights + LoadsOf(F) * 512);
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float2 sum = *reinterpret_cast<const float2*>(sums + group * places + place);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 pair = Span::ScaleAndBias(pairs[group * kTileRows + g + 8 * r], format);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int i = 2 * r + c;
          const float product = static_cast<float>(whole[group][i] * 256 + rest[group][i]);
          acc[i] = fmaf(pair.x * (c == 0 ? unit.x : unit.y), product,
                        fmaf(pair.y, c == 0 ? sum.x : sum.y, acc[i]));
        }
      }
    }
  }
}

// What becomes of finished sums.
enum class FewEnd { kPlain, kRouter, kRule };

// Where outputs are, and what is done to whole sums `y` (and `up`) times the norm's factor.
template <FewEnd kEnd>
struct FewOutputs {
  static constexpr bool kRoutes = kEnd == FewEnd::kRouter;
  static constexpr bool kRule = kEnd == FewEnd::kRule;
  bool gated;
  bool adds;
  float scale;
  float* values;
  int stride;
  int rows;
  Activation activation;
  bool activates;

  __device__ __forceinline__ FewOutputs(const LinearParams& p, int first_token)
      : gated(kRule ? p.matrix.interleaved : p.epilogue == LinearEpilogue::kSiluMul),
        adds(kRule ? p.rule.adds : p.epilogue == LinearEpilogue::kAdd),
        scale(p.scale),
        activation(p.rule.activation),
        activates(p.rule.activates) {
    rows = gated ? p.matrix.rows / 2 : p.matrix.rows;
    stride = kRoutes ? p.matrix.rows : p.output_stride;
    values = (kRoutes ? p.scores : p.output) + static_cast<long long>(first_token) * stride;
  }
  __device__ __forceinline__ float* At(int place, int row) const {
    return values + static_cast<long long>(place) * stride + row;
  }
  __device__ __forceinline__ void Store(float* to, float y, float up, float old) const {
    if constexpr (kRoutes) {
      __stcg(to, y);
    } else if constexpr (kRule) {
      if (gated || activates) y = Activate(activation, y);
      *to = fmaf(scale, gated ? y * up : y, old);
    } else {
      *to = gated ? FastSilu(y) * up : fmaf(scale, y, old);
    }
  }
};

}  // namespace adder::cuda
