// Matrices as they are copied to the device, before kernels pack them, and the format that they are
// packed in.
#pragma once

#include <vector>

#include "core/weight_matrix.h"
#include "cuda/kernels/packed_matrix.h"

namespace adder::cuda {

// The segments of a matrix as they are copied. No kernel multiplies the small floating-point
// numbers of the modes mxfp4, mxfp8 and nvfp4: their segments become dense ones, of bf16 where that
// holds every weight exactly, else of f32, and without data, which WriteDenseRows makes. The others
// stay what they are.
WeightMatrix AsCopied(const WeightMatrix& matrix);

// Rows first_row .. first_row + rows - 1 of a segment of such a mode as `dtype`, BF16 or F32, that
// holds them exactly: [rows, cols] numbers to `out`, which is aligned for them.
void WriteDenseRows(const MatrixSegment& segment, int64_t first_row, int64_t rows, DType dtype,
                    void* out);

struct PackedFormat {
  WeightFormat weights;
  ScaleFormat scales;
};
// The narrowest format that holds every segment of the matrices of a stack, as they are copied,
// exactly.
PackedFormat ChooseFormat(const std::vector<WeightMatrix>& stack);

}  // namespace adder::cuda
