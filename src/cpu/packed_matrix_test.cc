#include "cpu/packed_matrix.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"
#include "cpu/aligned_memory.h"
#include "cpu/random_weights_for_test.h"

namespace adder {
namespace {

// Repacking loses nothing: every row comes back as the checkpoint has it.
TEST(PackedMatrixTest, RowsSurviveRepacking) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group_size : {32, 64, 128}) {
      for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
        const RandomSegment source(37, 3 * group_size, bits, group_size, dtype, 0.5f,
                                   static_cast<uint32_t>(bits * 1000 + group_size));
        PackedMatrix packed = DescribePacked(source.segment());
        EXPECT_EQ(packed.blocks(), 3);
        Scratch<std::byte> memory;
        packed.data = memory.Get(static_cast<size_t>(packed.bytes()));
        PackBlocks(source.segment(), 0, 2, packed);
        PackBlocks(source.segment(), 2, 3, packed);
        std::vector<float> expected(static_cast<size_t>(packed.cols));
        std::vector<float> actual(expected.size());
        for (int64_t row = 0; row < packed.rows; ++row) {
          DequantizeRow(source.segment(), row, expected.data());
          DequantizePackedRow(packed, row, actual.data());
          ASSERT_EQ(expected, actual) << bits << " bits, group " << group_size << ", row " << row;
        }
      }
    }
  }
}

// Sixteen full rows cost exactly what the checkpoint stores.
TEST(PackedMatrixTest, TakesNoMoreMemory) {
  const RandomSegment source(32, 256, 5, 64, DType::kF16, 1.0f, 7);
  EXPECT_EQ(DescribePacked(source.segment()).bytes(), source.segment().bytes());
}

TEST(PackedMatrixTest, UnknownFormatsAreErrors) {
  MatrixSegment segment;
  segment.rows = 16;
  segment.cols = 64;
  segment.dtype = DType::kBF16;
  segment.bits = 7;
  segment.group_size = 32;
  EXPECT_THROW(DescribePacked(segment), Error);
  segment.bits = 4;
  segment.group_size = 48;
  EXPECT_THROW(DescribePacked(segment), Error);
  segment.group_size = 0;
  EXPECT_THROW(DescribePacked(segment), Error);
  segment.group_size = 64;
  EXPECT_NO_THROW(DescribePacked(segment));
}

}  // namespace
}  // namespace adder
