// What the scan of a mixer with a selection takes in, gathered.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/mamba1.h"

namespace adder::cuda {

struct SelectionParams {
  int rows = 0;
  int inner = 0;
  int states = 0;  // of B, and of C
  SmallNorm b_norm;
  SmallNorm c_norm;
  const float* x = nullptr;  // [rows, x_stride], the first `inner`
  int x_stride = 0;
  const float* b_c = nullptr;  // [rows, b_c_stride]: B [states] | C [states]
  int b_c_stride = 0;
  float* output = nullptr;  // [rows, inner + 2 * states]: x | normed B | normed C
};

void LaunchSelection(const SelectionParams& params, cudaStream_t stream);

// Some columns of f32 rows, normed as a small row, to bf16 rows.
struct RoundedPart {
  int begin = 0;  // the first column
  int size = 0;
  SmallNorm norm;
  __nv_bfloat16* output = nullptr;  // [rows, output_stride], zeros behind the size up to Bf16Stride
  int output_stride = 0;
};
struct RoundedParts {
  int rows = 0;
  const float* input = nullptr;  // [rows, input_stride]
  int input_stride = 0;
  int count = 0;
  RoundedPart parts[3];
};
// What products and chunked scans take in of a selection's rows.
void LaunchRoundParts(const RoundedParts& params, cudaStream_t stream);

}  // namespace adder::cuda
