// What a RowRule makes of products of a long slice.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "model/plan.h"

namespace adder::cuda {

// With products y of a row, z[r] = factors[r] * y[r] + bias[r].
struct RuledRows {
  // [rows, Bf16Stride(width)], or [rows, Bf16Stride(2 * width)] if gated: gate | up
  const __nv_bfloat16* products = nullptr;
  int rows = 0;
  int width = 0;
  bool gated = false;
  Activation activation = Activation::kSilu;
  const float* factors = nullptr;  // null: all 1
  const float* bias = nullptr;     // null: none
  const float* times = nullptr;    // [rows, times_stride]; null: all 1
  int times_stride = 0;
  __nv_bfloat16* output = nullptr;  // [rows, Bf16Stride(width)], zeros behind the width
};

// output = activation(z), times z of the up rows if gated; times the element of `times`.
void LaunchRuledRows(const RuledRows& params, cudaStream_t stream);

// output [rows, stride] = scale * (factors [width] * output + bias [width]), in place. The bias may
// be null.
void LaunchScaleRows(const float* factors, const float* bias, float scale, int rows, int width,
                     float* output, int stride, cudaStream_t stream);

}  // namespace adder::cuda
