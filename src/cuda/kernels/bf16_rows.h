// What surrounds the matrix products of a long slice: activations and weights as rows of bf16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "cuda/kernels/packed_matrix.h"

namespace adder::cuda {

// Rows of bf16 begin on 16-byte boundaries; what lies between the width and the stride is zero.
constexpr int Bf16Stride(int width) { return (width + 7) / 8 * 8; }

// output [rows, Bf16Stride(width)] = RMSNorm(input) * weight, or input alone without a weight;
// times silu(gate) if there is a gate. The output may be the bf16 input, with its stride.
struct Bf16NormParams {
  // [rows, stride]: one of them, the other null. Strides are multiples of 4.
  const float* input = nullptr;
  const __nv_bfloat16* bf16_input = nullptr;
  int stride = 0;
  int rows = 0;
  int width = 0;
  int groups = 1;  // the mean is taken over each of so many equal parts of a row
  const float* weight = nullptr;
  float eps = 0;
  const float* gate = nullptr;  // [rows, gate_stride], multiples of 4; null: none
  int gate_stride = 0;
  __nv_bfloat16* output = nullptr;
};
void LaunchBf16Norm(const Bf16NormParams& params, cudaStream_t stream);

// output [count, rows, Bf16Stride(cols)] = the first matrices of the stack, in the order of the
// checkpoint.
void LaunchUnpack(const PackedMatrix& matrix, int count, __nv_bfloat16* output,
                  cudaStream_t stream);

// output [rows, Bf16Stride(width)] = silu(gate + bias) * (up + bias) * sigmoid(row_gate).
struct SiluMulParams {
  const __nv_bfloat16* gates = nullptr;  // [rows, Bf16Stride(2 * width)]: gate | up
  const float* bias = nullptr;           // [2 * width]; null: none
  const float* row_gate = nullptr;       // [rows, row_gate_stride], the first of each; null: none
  int row_gate_stride = 0;
  int rows = 0;
  int width = 0;
  __nv_bfloat16* output = nullptr;
};
void LaunchSiluMul(const SiluMulParams& params, cudaStream_t stream);

// output [rows, stride] += scale * bias [width].
void LaunchAddBias(const float* bias, float scale, int rows, int width, float* output, int stride,
                   cudaStream_t stream);

// output [rows, stride] f32 = input [rows, parts, Bf16Stride(width / parts)], without the padding.
void LaunchWiden(const __nv_bfloat16* input, int rows, int width, int parts, float* output,
                 int stride, cudaStream_t stream);

}  // namespace adder::cuda
