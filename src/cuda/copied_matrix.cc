#include "cuda/copied_matrix.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <type_traits>

#include "core/small_float.h"

namespace adder::cuda {
namespace {

constexpr size_t kByteValues = 256;

bool BF16Holds(float value) {
  return std::isnan(value) || BF16ToFloat(FloatToBF16(value)) == value;
}

// The weights that a segment's codes stand for, as T (uint16_t: bf16), by the code of their scale.
// Looking them up is many times faster than DequantizeRow; they are the same, bitwise.
template <class T>
class WeightsOfCodes {
 public:
  explicit WeightsOfCodes(const MatrixSegment& segment)
      : segment_(segment), weights_(kByteValues << segment.bits) {}

  int codes() const { return 1 << segment_.bits; }
  unsigned ScaleCode(int64_t row, int64_t group) const {
    return std::to_integer<unsigned>(segment_.scales[row * segment_.groups() + group]);
  }
  // [codes()] of a scale. Few scales occur, so that weights are made when they are asked for.
  const T* Of(unsigned scale_code) {
    T* weights = weights_.data() + (scale_code << segment_.bits);
    if (made_[scale_code]) return weights;
    made_[scale_code] = true;
    MatrixSegment one = segment_;
    const auto byte = static_cast<std::byte>(scale_code);
    one.scales = &byte;
    const float scale = one.ScaleOf(0);
    for (int code = 0; code < codes(); ++code) {
      const auto q = static_cast<unsigned>(code);
      const float weight = (segment_.bits == 4 ? E2M1ToFloat(q) : E4M3ToFloat(q)) * scale;
      if constexpr (std::is_same_v<T, float>) {
        weights[code] = weight;
      } else {
        weights[code] = FloatToBF16(weight);
      }
    }
    return weights;
  }
  // Those of a group of a row, in order.
  void Write(int64_t row, int64_t group, T* out) {
    const T* weights = Of(ScaleCode(row, group));
    const int64_t size = segment_.group_size;
    const std::byte* codes =
        segment_.data + row * segment_.row_bytes() + group * size * segment_.bits / 8;
    if (segment_.bits == 8) {
      for (int64_t k = 0; k < size; ++k) out[k] = weights[std::to_integer<unsigned>(codes[k])];
      return;
    }
    for (int64_t k = 0; k < size; k += 2) {
      const auto pair = std::to_integer<unsigned>(codes[k / 2]);
      out[k] = weights[pair & 15u];
      out[k + 1] = weights[pair >> 4];
    }
  }

 private:
  const MatrixSegment& segment_;
  std::vector<T> weights_;  // [scale code][code]
  std::array<bool, kByteValues> made_{};
};

// The narrowest type that holds every weight of a segment of small floating-point numbers. Most
// scales make no number that bf16 cannot hold; only groups with another one are looked through.
DType DenseType(const MatrixSegment& segment) {
  WeightsOfCodes<float> weights(segment);
  std::array<std::optional<bool>, kByteValues> holds_all;
  std::vector<float> group(static_cast<size_t>(segment.group_size));
  for (int64_t row = 0; row < segment.rows; ++row) {
    for (int64_t g = 0; g < segment.groups(); ++g) {
      const unsigned scale = weights.ScaleCode(row, g);
      if (!holds_all[scale]) {
        const float* all = weights.Of(scale);
        holds_all[scale] = std::all_of(all, all + weights.codes(), BF16Holds);
      }
      if (*holds_all[scale]) continue;
      weights.Write(row, g, group.data());
      if (!std::all_of(group.begin(), group.end(), BF16Holds)) return DType::kF32;
    }
  }
  return DType::kBF16;
}

template <class T>
void WriteRows(const MatrixSegment& segment, int64_t first_row, int64_t rows, T* out) {
  WeightsOfCodes<T> weights(segment);
  for (int64_t row = first_row; row < first_row + rows; ++row) {
    for (int64_t g = 0; g < segment.groups(); ++g, out += segment.group_size) {
      weights.Write(row, g, out);
    }
  }
}

}  // namespace

WeightMatrix AsCopied(const WeightMatrix& matrix) {
  WeightMatrix copied = matrix;
  for (MatrixSegment& segment : copied.segments) {
    if (segment.affine()) continue;
    MatrixSegment dense;
    dense.rows = segment.rows;
    dense.cols = segment.cols;
    dense.dtype = DenseType(segment);
    segment = dense;
  }
  return copied;
}

void WriteDenseRows(const MatrixSegment& segment, int64_t first_row, int64_t rows, DType dtype,
                    void* out) {
  if (dtype == DType::kBF16) {
    WriteRows(segment, first_row, rows, static_cast<uint16_t*>(out));
  } else {
    WriteRows(segment, first_row, rows, static_cast<float*>(out));
  }
}

PackedFormat ChooseFormat(const std::vector<WeightMatrix>& stack) {
  bool all_quantized = true;
  bool any_quantized = false;
  bool compact = true;
  int bits = 0;
  bool first = true;
  DType dtype = DType::kF32;
  bool one_dtype = true;
  for (const WeightMatrix& matrix : stack) {
    for (const MatrixSegment& segment : matrix.segments) {
      all_quantized = all_quantized && segment.quantized();
      any_quantized = any_quantized || segment.quantized();
      bits = std::max(bits, segment.bits);
      compact = compact && segment.group_size % kChunkCols == 0;
      one_dtype = one_dtype && (first || dtype == segment.dtype);
      dtype = segment.dtype;
      first = false;
    }
  }
  const bool two_bytes = one_dtype && (dtype == DType::kBF16 || dtype == DType::kF16);
  if (all_quantized) {
    return {bits <= 4 ? WeightFormat::kQ4 : WeightFormat::kQ8,
            !compact || !two_bytes  ? ScaleFormat::kWide
            : dtype == DType::kBF16 ? ScaleFormat::kCompactBf16
                                    : ScaleFormat::kCompactF16};
  }
  if (any_quantized || !two_bytes) return {WeightFormat::kF32, ScaleFormat::kNone};
  return {dtype == DType::kBF16 ? WeightFormat::kBf16 : WeightFormat::kF16, ScaleFormat::kNone};
}

}  // namespace adder::cuda
