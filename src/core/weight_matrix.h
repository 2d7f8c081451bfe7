// Views of weight matrices as checkpoints store them, and the plain (slow, exact) way to read them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace adder {

// MLX's modes of quantisation. The numbers of the others are floating-point ones of a few bits
// (core/small_float.h): mxfp4 has E2M1 codes in groups of 32 with E8M0 scales, mxfp8 E4M3 codes in
// groups of 32 with E8M0 scales, nvfp4 E2M1 codes in groups of 16 with E4M3 scales.
enum class QuantizationMode { kAffine, kMxfp4, kMxfp8, kNvfp4 };

std::string_view QuantizationModeName(QuantizationMode mode);
// Returns false for an unknown name.
bool ParseQuantizationMode(std::string_view name, QuantizationMode& mode);
// The one width of codes and the one size of groups of a mode that is not affine.
int ModeBits(QuantizationMode mode);
int ModeGroupSize(QuantizationMode mode);

// Rows of a matrix [rows, cols] in one storage format. Does not own its memory.
//
// Dense: `data` holds rows x cols elements of `dtype` (a float type), row-major.
// Affine (MLX quantisation): `bits` is 2, 3, 4, 5, 6 or 8. Each row of `data` is a little-endian
// bit stream of cols * bits bits: value k occupies bits k*bits to k*bits+bits-1. Group g of
// `group_size` consecutive columns has a scale and a bias of type `dtype`, stored [rows, cols /
// group_size] in `scales` and `biases`; the weight is q * scale + bias, in f32. Scales may be
// negative.
// Other modes: the same stream of codes and one byte of scale for a group (`dtype` is U8, no
// biases); the weight is the code's number times scale * global_scale, in f32.
// No pointer need be aligned beyond one byte.
struct MatrixSegment {
  int64_t rows = 0;
  int64_t cols = 0;
  DType dtype = DType::kF32;
  int bits = 0;  // 0: dense
  int group_size = 0;
  const std::byte* data = nullptr;
  const std::byte* scales = nullptr;
  const std::byte* biases = nullptr;
  QuantizationMode mode = QuantizationMode::kAffine;
  float global_scale = 1;

  bool affine() const { return mode == QuantizationMode::kAffine; }
  bool quantized() const { return bits != 0; }
  int64_t groups() const { return quantized() ? cols / group_size : 0; }
  // Bytes from one row of `data` to the next.
  int64_t row_bytes() const;
  // Bytes of the scales of one row, and of its biases where it has any.
  int64_t scale_row_bytes() const { return groups() * static_cast<int64_t>(DTypeSize(dtype)); }
  // The factor of a group of a mode that is not affine. `group` counts through all rows.
  float ScaleOf(int64_t group) const;
  // How the weights are stored, such as "BF16", "4-bit, groups of 64" or "mxfp4".
  std::string FormatName() const;
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
