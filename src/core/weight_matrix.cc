#include "core/weight_matrix.h"

#include "core/error.h"
#include "core/small_float.h"

namespace adder {
namespace {

struct Mode {
  QuantizationMode mode;
  std::string_view name;
  int bits;
  int group_size;
};
constexpr Mode kModes[] = {{QuantizationMode::kAffine, "affine", 0, 0},
                           {QuantizationMode::kMxfp4, "mxfp4", 4, 32},
                           {QuantizationMode::kMxfp8, "mxfp8", 8, 32},
                           {QuantizationMode::kNvfp4, "nvfp4", 4, 16}};

const Mode& Of(QuantizationMode mode) { return kModes[static_cast<size_t>(mode)]; }

}  // namespace

std::string_view QuantizationModeName(QuantizationMode mode) { return Of(mode).name; }

bool ParseQuantizationMode(std::string_view name, QuantizationMode& mode) {
  for (const Mode& known : kModes) {
    if (known.name != name) continue;
    mode = known.mode;
    return true;
  }
  return false;
}

int ModeBits(QuantizationMode mode) { return Of(mode).bits; }

int ModeGroupSize(QuantizationMode mode) { return Of(mode).group_size; }

int64_t MatrixSegment::row_bytes() const {
  return quantized() ? cols * bits / 8 : cols * static_cast<int64_t>(DTypeSize(dtype));
}

int64_t MatrixSegment::bytes() const {
  return rows * (row_bytes() + (affine() ? 2 : 1) * scale_row_bytes());
}

float MatrixSegment::ScaleOf(int64_t group) const {
  const auto code = std::to_integer<unsigned>(scales[group]);
  const float scale = mode == QuantizationMode::kNvfp4 ? E4M3ToFloat(code) : E8M0ToFloat(code);
  return scale * global_scale;
}

std::string MatrixSegment::FormatName() const {
  if (!quantized()) return std::string(DTypeName(dtype));
  if (!affine()) return std::string(QuantizationModeName(mode));
  return Concat(bits, "-bit, groups of ", group_size);
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
    if (!segment.affine()) {
      const float number = segment.bits == 4 ? E2M1ToFloat(q) : E4M3ToFloat(q);
      out[k] = number * segment.ScaleOf(static_cast<int64_t>(group));
      continue;
    }
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
