// Views of weight matrices as checkpoints store them, and the plain (slow, exact) way to read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace adder {

// Rows of a matrix [rows, cols] in one storage format. Does not own its memory.
//
// Dense: `data` holds rows x cols elements of `dtype` (a float type), row-major.
// Affine (MLX quantisation): `bits` is 2, 3, 4, 5, 6 or 8. Each row of `data` is a little-endian
// bit stream of cols * bits bits: value k occupies bits k*bits to k*bits+bits-1. Group g of
// `group_size` consecutive columns has a scale and a bias of type `dtype`, stored [rows, cols /
// group_size] in `scales` and `biases`; the weight is q * scale + bias, in f32. Scales may be
// negative. No pointer need be aligned beyond one byte.
struct MatrixSegment {
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kF32;
  int bits = 0;  // 0: dense
  int group_size = 0;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;

  bool quantized() const { return bits != 0; }
  int64_t groups() const { return quantized() ? cols / group_size : 0; }
  // Bytes from one row of `data` to the next.
  int64_t row_bytes() const;
  // Bytes of data, scales and biases together: what one full read costs.
  int64_t bytes() const;
};

// A matrix [rows, cols] whose rows are those of its segments, one below the other. Segments may
// differ in format (mixed-precision checkpoints quantise q, k and v differently).
struct WeightMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<MatrixSegment> segments;

  int64_t bytes() const;
};

// Writes row `row` of the segment as f32 to out[0 .. cols).
void DequantizeRow(const MatrixSegment& segment, int64_t row, float* out);
// The same for a row of the whole matrix.
void DequantizeRow(const WeightMatrix& matrix, int64_t row, float* out);

}  // namespace adder
