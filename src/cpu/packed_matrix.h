// Quantised weights in the order in which the kernels read them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/weight_matrix.h"

namespace adder {

// Rows are taken in blocks of 16 so that one SIMD lane belongs to one row and dot products need no
// sum across lanes. Missing rows of the last block are zero (q, scale and bias).
inline constexpr int64_t kBlockRows = 16;
// Columns are unpacked 32 at a time: eight quads of four columns. A 64-byte line of quad bytes
// holds byte c of row r at r * 4 + c: the four bytes of a lane meet four activations in one
// instruction.
inline constexpr int64_t kUnitColumns = 32;

// What the codes of a matrix stand for: q * scale + bias; or, with no biases, E2M1 or E4M3 numbers
// (core/small_float.h) times a scale.
enum class WeightCodes { kAffine, kE2M1, kE4M3 };

// E2M1 numbers are whole halves. Kernels look them up as kE2M1Offset + 2 * number, a whole number
// in [0, 24], and the scales stored beside them are half of the checkpoint's.
inline constexpr int kE2M1Offset = 12;
inline constexpr uint8_t kE2M1Lookup[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                            12, 11, 10, 9,  8,  6,  4,  0};

// A quantised segment after repacking. A block is a run of spans of span() columns: one group, or
// two groups of 16. A span is
//   scales [16] for each group | biases [16] (affine) | units [span() / 32],
// with scales and biases of `scale_dtype` (f64 sources become f32; one-byte scales become bf16,
// which holds them and their halves exactly), and a unit is its bit planes in the order below,
// 64 * bits bytes in all:
//   8 bits: 8 lines, one quad each.
//   4-bit plane (4, 5, 6 bits): 4 lines; line l holds quad 2l in low nibbles, 2l + 1 in high ones.
//   2-bit plane (2, 3, 6 bits): 2 lines; line l holds quads 4l .. 4l + 3 from low to high bits.
//   1-bit plane (3, 5 bits): 1 line; bit j belongs to quad j.
// The first plane holds the low bits of q.
struct PackedMatrix {
  int64_t rows = 0;
  int64_t cols = 0;
  int bits = 0;
  int group_size = 0;
  DType scale_dtype = DType::kF32;
  std::byte* data = nullptr;  // 64-byte aligned, not owned
  WeightCodes codes = WeightCodes::kAffine;

  int64_t groups() const { return cols / group_size; }
  // Products of E4M3 numbers with quantised activations do not fit the integer kernels.
  bool integer() const { return codes != WeightCodes::kE4M3; }
  int64_t span() const { return group_size < kUnitColumns ? kUnitColumns : group_size; }
  int64_t spans() const { return cols / span(); }
  int64_t blocks() const { return (rows + kBlockRows - 1) / kBlockRows; }
  // Bytes of the scales (or the biases) of one group.
  int64_t scale_bytes() const { return kBlockRows * static_cast<int64_t>(DTypeSize(scale_dtype)); }
  // Bytes of the scales and biases of one span.
  int64_t span_scale_bytes() const {
    return (codes == WeightCodes::kAffine ? 2 : span() / group_size) * scale_bytes();
  }
  int64_t span_bytes() const { return span_scale_bytes() + span() / kUnitColumns * 64 * bits; }
  int64_t block_bytes() const { return spans() * span_bytes(); }
  int64_t bytes() const { return blocks() * block_bytes(); }
};

// The packed form of a quantised segment, with no memory yet. Throws Error when the segment has a
// format the kernels do not know (bits, group size) or cannot read the columns in spans.
PackedMatrix DescribePacked(const MatrixSegment& segment);

// Fills blocks [block_begin, block_end) of `packed` from `segment`.
void PackBlocks(const MatrixSegment& segment, int64_t block_begin, int64_t block_end,
                const PackedMatrix& packed);

// Writes row `row` as f32 to out[0 .. cols): the values of DequantizeRow.
void DequantizePackedRow(const PackedMatrix& packed, int64_t row, float* out);

}  // namespace adder
