// What the scan of a Mamba-2 mixer with a selection takes in, gathered.
#pragma once

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

}  // namespace adder::cuda
