// Rows that are normed, scaled and mixed with what a buffer holds.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace adder::cuda {

// RmsNorm of model/plan.h, with all of its fields; sizes are those of the row.
struct RowNorm {
  bool used = false;
  bool centered = false;
  int groups = 1;
  const float* weight = nullptr;  // [weight_size], repeated over the row; null: all ones
  int weight_size = 1;
  const float* bias = nullptr;  // [width]; null: none
  float eps = 0;
};

// As UpdateOp in program/program.h, y being the input or its norm:
//   output = total * (keep * (output + keep_bias) * keep_scale + scale * (y + add_bias) *
//   add_scale)
// Vectors are [width], null where they change nothing. With keep 0 the output is not read, and may
// be the input.
struct RowUpdateParams {
  const float* input = nullptr;  // [*, input_stride]
  int input_stride = 0;
  const int* input_rows = nullptr;  // row i reads input row input_rows[i]; null: row i
  int rows = 0;
  int width = 0;
  RowNorm norm;
  const float* add_bias = nullptr;
  const float* add_scale = nullptr;
  float scale = 1;
  float keep = 0;
  const float* keep_bias = nullptr;
  const float* keep_scale = nullptr;
  const float* total = nullptr;  // [1]; null: 1
  float* output = nullptr;       // [rows, output_stride]
  int output_stride = 0;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output; null: none
  int rounded_stride = 0;
};

// A row's result does not depend on the other rows.
void LaunchRowUpdate(const RowUpdateParams& params, cudaStream_t stream);

}  // namespace adder::cuda
