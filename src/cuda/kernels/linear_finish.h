// What the epilogues of the matrix kernels lack: a pass over their products.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "model/plan.h"

namespace adder::cuda {

inline constexpr int kMostRowFactors = 8;

// A row has `width` results. With products y of a row, value r before the activation is
//   z[r] = factor(r) * (input_scale * y[r] + bias[r]) + addend[r]
// and the result activation(z[r]) * z[width + r] when gated, activation(z[r]) when it only
// activates, z[r] otherwise; times sigmoid(row_gate), `factor` and `scale`, stored or added, with a
// cap cap * tanh(result / cap). Unless gated the products may lie where the output does.
struct FinishParams {
  const float* products = nullptr;  // [rows, products_stride]: width, or 2 * width if gated
  int products_stride = 0;
  int rows = 0;
  int width = 0;
  float input_scale = 1;
  const float* bias = nullptr;  // of a row's products; null: none
  // factors[i] belongs to the products of a row from factor_ends[i - 1] to before factor_ends[i];
  // none: all factors are 1.
  int factor_count = 0;
  int factor_ends[kMostRowFactors] = {};
  float factors[kMostRowFactors] = {};
  bool gated = false;
  bool activates = false;
  Activation activation = Activation::kSilu;
  const float* row_gate = nullptr;  // [rows, row_gate_stride], the first of each; null: none
  int row_gate_stride = 0;
  const float* addend = nullptr;  // [rows, addend_stride]; null: none
  int addend_stride = 0;
  const float* factor = nullptr;  // [rows, factor_stride]; null: none
  int factor_stride = 0;
  float scale = 1;
  float cap = 0;  // 0: none
  bool adds = false;
  float* output = nullptr;  // [rows, output_stride]
  int output_stride = 0;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output; null: none
  int rounded_output_stride = 0;
};

void LaunchFinish(const FinishParams& params, cudaStream_t stream);

}  // namespace adder::cuda
