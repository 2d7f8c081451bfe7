#include "cpu/packed_matrix.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "core/error.h"
#include "core/small_float.h"

namespace adder {
namespace {

// Reads `count` values of `bits` bits of a little-endian bit stream that starts on a byte. `bytes`
// are readable from `stream` on.
void ReadBits(const std::byte* stream, int bits, int64_t count, uint8_t* out) {
  // 8 values fill `bits` whole bytes, and the columns come in multiples of 32.
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  for (int64_t k = 0; k < count; k += 8, stream += bits) {
    uint64_t word = 0;
    std::memcpy(&word, stream, static_cast<size_t>(bits));
    for (int j = 0; j < 8; ++j, word >>= bits) out[k + j] = static_cast<uint8_t>(word & mask);
  }
}

// Widths of the bit planes from the lowest bit on.
struct Planes {
  int widths[2];
  int count;
};
Planes PlanesOf(int bits) {
  switch (bits) {
    case 3:
      return {{2, 1}, 2};
    case 5:
      return {{4, 1}, 2};
    case 6:
      return {{4, 2}, 2};
    default:
      return {{bits, 0}, 1};
  }
}

// One unit: q[row][column] of 16 rows and 32 columns to bit planes.
void PackUnit(const uint8_t (&q)[kBlockRows][kUnitColumns], int bits, std::byte* out) {
  const Planes planes = PlanesOf(bits);
  int shift = 0;
  for (int p = 0; p < planes.count; ++p) {
    const int width = planes.widths[p];
    // The four columns of a quad are the bytes of a word: the mask keeps them apart.
    const uint32_t mask = ((1u << width) - 1u) * 0x01010101u;
    const int quads_per_line = 8 / width;
    for (int line = 0; line < width; ++line, out += 64) {
      for (int row = 0; row < kBlockRows; ++row) {
        uint32_t lane = 0;
        for (int j = 0; j < quads_per_line; ++j) {
          uint32_t quad = 0;
          std::memcpy(&quad, &q[row][(line * quads_per_line + j) * 4], 4);
          lane |= ((quad >> shift) & mask) << (j * width);
        }
        std::memcpy(out + row * 4, &lane, 4);
      }
    }
    shift += width;
  }
}

// Column `column` (0 .. 31) of row `row` of a unit.
unsigned UnitValue(const std::byte* unit, int bits, int row, int column) {
  const Planes planes = PlanesOf(bits);
  unsigned value = 0;
  int shift = 0;
  for (int p = 0; p < planes.count; ++p) {
    const int width = planes.widths[p];
    const int quads_per_line = 8 / width;
    const int quad = column / 4;
    const auto byte =
        std::to_integer<unsigned>(unit[quad / quads_per_line * 64 + row * 4 + column % 4]);
    value |= ((byte >> (quad % quads_per_line * width)) & ((1u << width) - 1u)) << shift;
    unit += 64 * width;
    shift += width;
  }
  return value;
}

// One scale or bias in the packed form.
void StoreScale(float value, DType dtype, std::byte* out) {
  if (dtype == DType::kF32) {
    std::memcpy(out, &value, sizeof(value));
  } else {
    const uint16_t raw = FloatToBF16(value);
    std::memcpy(out, &raw, sizeof(raw));
  }
}

// Scales or biases of one group: source [rows, groups] to [16].
void PackScales(const MatrixSegment& segment, const std::byte* source, int64_t first_row,
                int64_t group, const PackedMatrix& packed, std::byte* out) {
  const size_t size = DTypeSize(packed.scale_dtype);
  for (int64_t r = 0; r < kBlockRows; ++r, out += size) {
    const int64_t row = first_row + r;
    if (row >= segment.rows) {
      std::memset(out, 0, size);
      continue;
    }
    const int64_t index = row * segment.groups() + group;
    if (packed.codes != WeightCodes::kAffine) {
      const float half = packed.codes == WeightCodes::kE2M1 ? 0.5f : 1.0f;
      StoreScale(half * segment.ScaleOf(index), packed.scale_dtype, out);
    } else if (segment.dtype == packed.scale_dtype) {
      std::memcpy(out, source + static_cast<size_t>(index) * size, size);
    } else {
      StoreScale(LoadFloat(source, segment.dtype, static_cast<size_t>(index)), DType::kF32, out);
    }
  }
}

}  // namespace

PackedMatrix DescribePacked(const MatrixSegment& segment) {
  static constexpr std::array<int, 6> kBits = {2, 3, 4, 5, 6, 8};
  if (std::find(kBits.begin(), kBits.end(), segment.bits) == kBits.end()) {
    Fail("The CPU backend has no kernel for ", segment.bits,
         "-bit weights (it has 2, 3, 4, 5, 6 and 8).");
  }
  PackedMatrix packed;
  packed.rows = segment.rows;
  packed.cols = segment.cols;
  packed.bits = segment.bits;
  packed.group_size = segment.group_size;
  packed.scale_dtype = segment.dtype == DType::kF64 ? DType::kF32 : segment.dtype;
  if (!segment.affine()) {
    packed.codes = segment.bits == 4 ? WeightCodes::kE2M1 : WeightCodes::kE4M3;
    packed.scale_dtype = segment.global_scale == 1.0f ? DType::kBF16 : DType::kF32;
  }
  const bool halves = packed.codes == WeightCodes::kE2M1 && 2 * segment.group_size == kUnitColumns;
  if (segment.group_size <= 0 || (segment.group_size % kUnitColumns != 0 && !halves) ||
      segment.cols % packed.span() != 0) {
    Fail("The CPU backend cannot read quantisation groups of ", segment.group_size,
         " columns in rows of ", segment.cols, ": groups must be multiples of ", kUnitColumns,
         " that divide the row",
         halves ? Concat(", or 16 in rows of multiples of ", kUnitColumns) : std::string(), ".");
  }
  return packed;
}

void PackBlocks(const MatrixSegment& segment, int64_t block_begin, int64_t block_end,
                const PackedMatrix& packed) {
  const int64_t unit_bytes = 64 * packed.bits;
  const int64_t source_unit_bytes = kUnitColumns * packed.bits / 8;
  const int64_t units_per_span = packed.span() / kUnitColumns;
  const int64_t groups_per_span = packed.span() / packed.group_size;
  for (int64_t block = block_begin; block < block_end; ++block) {
    const int64_t first_row = block * kBlockRows;
    std::byte* out = packed.data + block * packed.block_bytes();
    for (int64_t span = 0; span < packed.spans(); ++span) {
      for (int64_t g = 0; g < groups_per_span; ++g, out += packed.scale_bytes()) {
        PackScales(segment, segment.scales, first_row, span * groups_per_span + g, packed, out);
      }
      if (packed.codes == WeightCodes::kAffine) {
        PackScales(segment, segment.biases, first_row, span, packed, out);
        out += packed.scale_bytes();
      }
      for (int64_t unit = 0; unit < units_per_span; ++unit, out += unit_bytes) {
        uint8_t q[kBlockRows][kUnitColumns] = {};
        for (int64_t r = 0; r < kBlockRows && first_row + r < segment.rows; ++r) {
          const std::byte* row = segment.data + (first_row + r) * segment.row_bytes();
          ReadBits(row + (span * units_per_span + unit) * source_unit_bytes, packed.bits,
                   kUnitColumns, q[r]);
        }
        PackUnit(q, packed.bits, out);
      }
    }
  }
}

void DequantizePackedRow(const PackedMatrix& packed, int64_t row, float* out) {
  const int64_t unit_bytes = 64 * packed.bits;
  const int lane = static_cast<int>(row % kBlockRows);
  const std::byte* span = packed.data + row / kBlockRows * packed.block_bytes();
  const auto at = static_cast<size_t>(lane);
  for (int64_t g = 0; g < packed.groups(); ++g) {
    const int64_t first = g * packed.group_size % packed.span();
    if (g > 0 && first == 0) span += packed.span_bytes();
    const float scale =
        LoadFloat(span + first / packed.group_size * packed.scale_bytes(), packed.scale_dtype, at);
    const float bias = packed.codes == WeightCodes::kAffine
                           ? LoadFloat(span + packed.scale_bytes(), packed.scale_dtype, at)
                           : 0.0f;
    for (int64_t k = first; k < first + packed.group_size; ++k) {
      const std::byte* unit = span + packed.span_scale_bytes() + k / kUnitColumns * unit_bytes;
      const unsigned q = UnitValue(unit, packed.bits, lane, static_cast<int>(k % kUnitColumns));
      if (packed.codes == WeightCodes::kE2M1) {
        *out++ = static_cast<float>(kE2M1Lookup[q] - kE2M1Offset) * scale;
      } else if (packed.codes == WeightCodes::kE4M3) {
        *out++ = E4M3ToFloat(q) * scale;
      } else {
        *out++ = static_cast<float>(q) * scale + bias;
      }
    }
  }
}

}  // namespace adder
