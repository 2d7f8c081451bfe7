#include "core/weight_matrix.h"

namespace adder {

int64_t MatrixSegment::row_bytes() const {
  return quantized() ? cols * bits / 8 : cols * static_cast<int64_t>(DTypeSize(dtype));
}

int64_t MatrixSegment::bytes() const {
  return rows * (row_bytes() + 2 * groups() * static_cast<int64_t>(DTypeSize(dtype)));
}

int64_t WeightMatrix::bytes() const {
  int64_t total = 0;
  for (const MatrixSegment& segment : segments) total += segment.bytes();
  return total;
}

void DequantizeRow(const MatrixSegment& segment, int64_t row, float* out) {
  const std::byte* data = segment.data + row * segment.row_bytes();
  if (!segment.quantized()) {
    for (int64_t k = 0; k < segment.cols; ++k) {
      out[k] = LoadFloat(data, segment.dtype, static_cast<size_t>(k));
    }
    return;
  }
  const unsigned mask = (1u << segment.bits) - 1u;
  for (int64_t k = 0; k < segment.cols; ++k) {
    const int64_t bit = k * segment.bits;
    const int64_t byte = bit / 8;
    unsigned word = std::to_integer<unsigned>(data[byte]);
    // A value crosses a byte boundary only when bits does not divide 8; then the next byte exists.
    if (bit % 8 + segment.bits > 8) word |= std::to_integer<unsigned>(data[byte + 1]) << 8;
    const unsigned q = (word >> (bit % 8)) & mask;
    const size_t group = static_cast<size_t>(row * segment.groups() + k / segment.group_size);
    out[k] = static_cast<float>(q) * LoadFloat(segment.scales, segment.dtype, group) +
             LoadFloat(segment.biases, segment.dtype, group);
  }
}

void DequantizeRow(const WeightMatrix& matrix, int64_t row, float* out) {
  for (const MatrixSegment& segment : matrix.segments) {
    if (row < segment.rows) {
      DequantizeRow(segment, row, out);
      return;
    }
    row -= segment.rows;
  }
}

}  // namespace adder
