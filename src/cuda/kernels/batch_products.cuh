// What the matrix kernels of batches share: weights scaled in bf16, and what becomes of finished
// sums.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/kernels/batch_outputs.cuh"
#include "cuda/kernels/linear.h"
#include "cuda/kernels/linear_fragments.cuh"

namespace adder::cuda {

// As Mma, but free to be scheduled.
__device__ __forceinline__ void FreeMma(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                        unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
      "{%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ __nv_bfloat162 AsPair(unsigned word) {
  return *reinterpret_cast<const __nv_bfloat162*>(&word);
}
__device__ __forceinline__ unsigned AsWord(__nv_bfloat162 pair) {
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Scales and biases of rows g and g + 8 of a tile and chunk in both halves of a word: [h][r].
template <bool kWide>
struct Bf16Scales {
  __nv_bfloat162 scale[kWide ? 2 : 1][2];
  __nv_bfloat162 bias[kWide ? 2 : 1][2];

  // `from`: the chunk's scales as packed_matrix.h has them, in shared memory.
  __device__ __forceinline__ void Load(const char* from, int g, ScaleFormat format) {
#pragma unroll
    for (int h = 0; h < (kWide ? 2 : 1); ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = h * kTileRows + g + 8 * r;
        if constexpr (kWide) {
          const float2 pair = reinterpret_cast<const float2*>(from)[row];
          scale[h][r] = __float2bfloat162_rn(pair.x);
          bias[h][r] = __float2bfloat162_rn(pair.y);
        } else {
          unsigned word = reinterpret_cast<const unsigned*>(from)[row];
          if (format == ScaleFormat::kCompactF16) {
            const float2 pair = __half22float2(*reinterpret_cast<const __half2*>(&word));
            word = PackBf16(pair.x, pair.y);
          }
          scale[h][r] = AsPair(__byte_perm(word, 0, 0x1010));
          bias[h][r] = AsPair(__byte_perm(word, 0, 0x3232));
        }
      }
    }
  }
};

// Weights of one tile and chunk as A operands, unscaled in bf16, become scale * a + bias with the
// scales at `from`.
template <WeightFormat F, bool kWide>
__device__ __forceinline__ void ScaleBf16(const char* from, ScaleFormat format,
                                          unsigned (&a)[4][4]) {
  if constexpr (Fragment<F>::kQuantized) {
    Bf16Scales<kWide> scales;
    scales.Load(from, threadIdx.x % 32 / 4, format);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int h = kWide ? j / 2 : 0;
        a[j][i] = AsWord(__hfma2(AsPair(a[j][i]), scales.scale[h][i % 2], scales.bias[h][i % 2]));
      }
    }
  }
}

// The same operands times the norm's weight: `norm` holds it for this lane's columns, [h] component
// `pair`.
__device__ __forceinline__ void MultiplyBf16(const unsigned (&a)[4][4], const uint4 (&norm)[2],
                                             unsigned (&product)[4][4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned factor = Component(norm[j / 2], j % 2 * 2 + i / 2);
      product[j][i] = AsWord(__hmul2(AsPair(a[j][i]), AsPair(factor)));
    }
  }
}

// Weights of one tile and chunk as A operands in bf16, times the norm's weight: `norm` holds it for
// this lane's columns, [h] component `pair`. Packed weights are at `unit`, their scales at
// `scales`.
template <WeightFormat F, bool kWide>
__device__ __forceinline__ void WeightsAsBf16(const char* unit, const char* scales,
                                              ScaleFormat format, bool has_norm,
                                              const uint4 (&norm)[2], unsigned (&a)[4][4]) {
  constexpr int kLoads = LoadsOf(F);
  const int lane = threadIdx.x % 32;
  uint4 raw[kLoads];
#pragma unroll
  for (int i = 0; i < kLoads; ++i) {
    raw[i] = reinterpret_cast<const uint4*>(unit)[i * 32 + lane];
  }
  if constexpr (F == WeightFormat::kQ4) {
    unsigned raised;
    asm("mov.b32 %0, 0x43004300;" : "=r"(raised));
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned word = Component(raw[0], 2 * h + r);
#pragma unroll
        for (int pair = 0; pair < 4; ++pair) {
          // 0x4300 | q is 128 + q in bf16. (x & y) | z as one instruction: a compiler that sees two
          // constants makes two.
          unsigned& w = a[2 * h + pair / 2][2 * (pair % 2) + r];
          asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;"
              : "=r"(w)
              : "r"(word >> (4 * pair)), "r"(raised));
          w = AsWord(__hsub2(AsPair(w), AsPair(raised)));
        }
      }
    }
  } else {
    Fragment<F>::template Expand<true>(raw, 0, a);
  }
  ScaleBf16<F, kWide>(scales, format, a);
  if (has_norm) MultiplyBf16(a, norm, a);
}

// The same with scales behind the weights.
template <WeightFormat F, bool kWide>
__device__ __forceinline__ void WeightsAsBf16(const char* unit, ScaleFormat format, bool has_norm,
                                              const uint4 (&norm)[2], unsigned (&a)[4][4]) {
  WeightsAsBf16<F, kWide>(unit, unit + LoadsOf(F) * 512, format, has_norm, norm, a);
}

// Whether results are added to what is there.
__host__ __device__ inline bool Adds(const LinearParams& p) {
  return p.epilogue == LinearEpilogue::kAdd || (p.epilogue == LinearEpilogue::kRule && p.rule.adds);
}

// To about six digits.
__device__ __forceinline__ float FastSilu(float x) { return __fdividef(x, 1.0f + __expf(-x)); }

struct FinishParams {
  float inverse_cols;
  float scale;  // of the epilogue
};
inline FinishParams FinishOf(const LinearParams& p) {
  return {1.0f / static_cast<float>(p.matrix.cols),
          p.epilogue == LinearEpilogue::kRouter ? 1.0f : p.scale};
}

// The norm's factor, bias and epilogue for four sums of a token, and of gated products the four of
// `up`; `squares` is the sum of the token's squares where there is a norm, `old` what is added to.
__device__ __forceinline__ void FinishFour(const LinearParams& p, const Outputs& outputs,
                                           const FinishParams& finish, int token, int row,
                                           float squares, float4 y, float4 up, float4 old) {
  const bool gated = p.matrix.interleaved;
  const bool ruled = p.epilogue == LinearEpilogue::kRule;
  if (p.norm_weight != nullptr) {
    const float factor = rsqrtf(fmaf(squares, finish.inverse_cols, p.norm_eps));
    y.x *= factor, y.y *= factor, y.z *= factor, y.w *= factor;
    up.x *= factor, up.y *= factor, up.z *= factor, up.w *= factor;
  }
  if (ruled && p.rule.factors != nullptr) {
    y = MultiplyRows(p.rule.factors, row, outputs.rows, y);
    if (gated) up = MultiplyRows(p.rule.factors + outputs.rows, row, outputs.rows, up);
  }
  if (p.bias != nullptr) {
    y = AddBias(p.bias, row, outputs.rows, y);
    if (gated) up = AddBias(p.bias + outputs.rows, row, outputs.rows, up);
  }
  if (ruled && (gated || p.rule.activates)) {
    const Activation activation = p.rule.activation;
    y = make_float4(Activate(activation, y.x), Activate(activation, y.y), Activate(activation, y.z),
                    Activate(activation, y.w));
  }
  if (gated && ruled) {
    y = make_float4(y.x * up.x, y.y * up.y, y.z * up.z, y.w * up.w);
  } else if (gated) {
    y = make_float4(FastSilu(y.x) * up.x, FastSilu(y.y) * up.y, FastSilu(y.z) * up.z,
                    FastSilu(y.w) * up.w);
  } else {
    y.x = fmaf(finish.scale, y.x, old.x), y.y = fmaf(finish.scale, y.y, old.y);
    y.z = fmaf(finish.scale, y.z, old.z), y.w = fmaf(finish.scale, y.w, old.w);
  }
  outputs.Store(p, token, row, y);
}

}  // namespace adder::cuda
