#include "core/weight_matrix.h"

#include <gtest/gtest.h>

#include <vector>

namespace adder {
namespace {

const std::byte* Bytes(const void* data) { return static_cast<const std::byte*>(data); }

// A bit-by-bit packer, independent of the reader under test.
std::vector<uint8_t> PackBits(const std::vector<unsigned>& values, int bits) {
  std::vector<uint8_t> out((values.size() * static_cast<size_t>(bits) + 7) / 8);
  size_t position = 0;
  for (unsigned value : values) {
    for (int b = 0; b < bits; ++b, ++position) {
      if ((value >> b) & 1u) out[position / 8] |= static_cast<uint8_t>(1u << (position % 8));
    }
  }
  return out;
}

TEST(DequantizeRow, EveryBitWidthAndGroupSize) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group_size : {32, 64, 128}) {
      const int64_t rows = 3, cols = 256;
      std::vector<unsigned> q(static_cast<size_t>(rows * cols));
      for (size_t i = 0; i < q.size(); ++i) q[i] = (i * 2654435761u >> 7) & ((1u << bits) - 1u);
      const std::vector<uint8_t> packed = PackBits(q, bits);
      std::vector<uint16_t> scales, biases;
      for (int64_t i = 0; i < rows * cols / group_size; ++i) {
        scales.push_back(FloatToBF16((i % 2 ? -1.0f : 1.0f) * (0.5f + static_cast<float>(i))));
        biases.push_back(FloatToBF16(-8.0f * static_cast<float>(i)));
      }
      MatrixSegment segment{rows,
                            cols,
                            DType::kBF16,
                            bits,
                            group_size,
                            Bytes(packed.data()),
                            Bytes(scales.data()),
                            Bytes(biases.data())};
      EXPECT_EQ(segment.row_bytes(), cols * bits / 8);
      EXPECT_EQ(segment.bytes(), rows * (cols * bits / 8 + 4 * cols / group_size));
      std::vector<float> out(static_cast<size_t>(cols));
      for (int64_t row = 0; row < rows; ++row) {
        DequantizeRow(segment, row, out.data());
        for (int64_t k = 0; k < cols; ++k) {
          const size_t group = static_cast<size_t>((row * cols + k) / group_size);
          const float expected = static_cast<float>(q[static_cast<size_t>(row * cols + k)]) *
                                     BF16ToFloat(scales[group]) +
                                 BF16ToFloat(biases[group]);
          ASSERT_EQ(out[static_cast<size_t>(k)], expected) << bits << " " << group_size;
        }
      }
    }
  }
}

TEST(DequantizeRow, SegmentsStackInOrder) {
  const float top[4] = {1, 2, 3, 4};
  const uint16_t bottom[2] = {FloatToBF16(5), FloatToBF16(6)};
  MatrixSegment first{2, 2, DType::kF32, 0, 0, Bytes(top), nullptr, nullptr};
  MatrixSegment second{1, 2, DType::kBF16, 0, 0, Bytes(bottom), nullptr, nullptr};
  const WeightMatrix matrix{3, 2, {first, second}};
  EXPECT_EQ(matrix.bytes(), 16 + 4);
  float out[2];
  DequantizeRow(matrix, 1, out);
  EXPECT_EQ(out[0], 3);
  EXPECT_EQ(out[1], 4);
  DequantizeRow(matrix, 2, out);
  EXPECT_EQ(out[0], 5);
  EXPECT_EQ(out[1], 6);
}

}  // namespace
}  // namespace adder
