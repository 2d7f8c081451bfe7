// The outputs of the matrix kernel for many tokens, four consecutive ones of a token at a time.
#pragma once

#include "cuda/kernels/linear_fragments.cuh"

namespace adder::cuda {

// What a block's threads do with finished sums: four consecutive outputs of one token at a time.
struct Outputs {
  float* values;
  int stride;
  int rows;
  bool vectors;  // fours lie on 16-byte boundaries and do not straddle the end

  __device__ __forceinline__ explicit Outputs(const LinearParams& p) {
    const bool router = p.epilogue == LinearEpilogue::kRouter;
    values = router ? p.scores : p.output;
    stride = router ? p.matrix.rows : p.output_stride;
    rows = p.matrix.interleaved ? p.matrix.rows / 2 : p.matrix.rows;
    vectors = (rows | stride | p.rounded_output_stride) % 4 == 0;
  }
  __device__ __forceinline__ float4 Load(int token, int row) const {
    const float* from = values + static_cast<long long>(token) * stride + row;
    if (vectors) return *reinterpret_cast<const float4*>(from);
    return make_float4(from[0], row + 1 < rows ? from[1] : 0.0f, row + 2 < rows ? from[2] : 0.0f,
                       row + 3 < rows ? from[3] : 0.0f);
  }
  __device__ __forceinline__ void Store(const LinearParams& p, int token, int row, float4 y) const {
    float* to = values + static_cast<long long>(token) * stride + row;
    uint16_t* rounded =
        p.rounded_output == nullptr
            ? nullptr
            : p.rounded_output + static_cast<long long>(token) * p.rounded_output_stride + row;
    const uint2 both = make_uint2(PackBf16(y.x, y.y), PackBf16(y.z, y.w));
    if (vectors) {
      *reinterpret_cast<float4*>(to) = y;
      if (rounded != nullptr) *reinterpret_cast<uint2*>(rounded) = both;
      return;
    }
#pragma unroll 1
    for (int i = 0; i < 4 && row + i < rows; ++i) {
      to[i] = i == 0 ? y.x : i == 1 ? y.y : i == 2 ? y.z : y.w;
      if (rounded != nullptr) {
        rounded[i] = static_cast<uint16_t>((i < 2 ? both.x : both.y) >> (16 * (i % 2)));
      }
    }
  }
};

__device__ __forceinline__ float4 AddBias(const float* bias, int row, int rows, float4 y) {
  y.x += bias[row];
  if (row + 1 < rows) y.y += bias[row + 1];
  if (row + 2 < rows) y.z += bias[row + 2];
  if (row + 3 < rows) y.w += bias[row + 3];
  return y;
}

__device__ __forceinline__ float4 MultiplyRows(const float* factors, int row, int rows, float4 y) {
  y.x *= factors[row];
  if (row + 1 < rows) y.y *= factors[row + 1];
  if (row + 2 < rows) y.z *= factors[row + 2];
  if (row + 3 < rows) y.w *= factors[row + 3];
  return y;
}

}  // namespace adder::cuda
