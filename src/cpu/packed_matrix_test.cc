#include "cpu/packed_matrix.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/error.h"
#include "cpu/aligned_memory.h"
#include "cpu/random_weights_for_test.h"

namespace adder {
namespace {

// Repacking loses nothing: every row comes back as the checkpoint has it.
void ExpectSameRows(const MatrixSegment& source, const std::string& name) {
  PackedMatrix packed = DescribePacked(source);
  ASSERT_EQ(packed.blocks(), 3);
  Scratch<std::byte> memory;
  packed.data = memory.Get(static_cast<size_t>(packed.bytes()));
  PackBlocks(source, 0, 2, packed);
  PackBlocks(source, 2, 3, packed);
  std::vector<float> expected(static_cast<size_t>(packed.cols));
  std::vector<float> actual(expected.size());
  for (int64_t row = 0; row < packed.rows; ++row) {
    DequantizeRow(source, row, expected.data());
    DequantizePackedRow(packed, row, actual.data());
    ASSERT_EQ(expected, actual) << name << ", row " << row;
  }
}

TEST(PackedMatrixTest, RowsOfSmallFloatsSurviveRepacking) {
  for (const QuantizationMode mode :
       {QuantizationMode::kMxfp4, QuantizationMode::kMxfp8, QuantizationMode::kNvfp4}) {
    const std::string name(QuantizationModeName(mode));
    const RandomSegment source(37, 96, mode, 11);
    EXPECT_EQ(DescribePacked(source.segment()).scale_dtype, DType::kBF16);
    ExpectSameRows(source.segment(), name);
    const RandomSegment scaled(37, 160, mode, 12, 0.3f);
    EXPECT_EQ(DescribePacked(scaled.segment()).scale_dtype, DType::kF32);
    ExpectSameRows(scaled.segment(), name + " with a scale of the tensor");
  }
}

// The least and the largest scales survive too.
TEST(PackedMatrixTest, ExtremeScalesSurviveRepacking) {
  for (const QuantizationMode mode :
       {QuantizationMode::kMxfp4, QuantizationMode::kMxfp8, QuantizationMode::kNvfp4}) {
    const RandomSegment random(48, 64, mode, 13);
    MatrixSegment source = random.segment();
    std::vector<std::byte> scales(static_cast<size_t>(source.rows * source.groups()));
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = static_cast<std::byte>(mode == QuantizationMode::kNvfp4 ? i % 127 : i * 7 % 240);
    }
    scales[0] = std::byte{0};
    source.scales = scales.data();
    ExpectSameRows(source, std::string(QuantizationModeName(mode)));
  }
}

TEST(PackedMatrixTest, RowsSurviveRepacking) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group_size : {32, 64, 128}) {
      for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32, DType::kF64}) {
        const RandomSegment source(37, 3 * group_size, bits, group_size, dtype, 0.5f,
                                   static_cast<uint32_t>(bits * 1000 + group_size));
        ExpectSameRows(source.segment(), Concat(bits, " bits, group ", group_size));
      }
    }
  }
}

// Sixteen full rows cost exactly what the checkpoint stores.
TEST(PackedMatrixTest, TakesNoMoreMemory) {
  const RandomSegment source(32, 256, 5, 64, DType::kF16, 1.0f, 7);
  EXPECT_EQ(DescribePacked(source.segment()).bytes(), source.segment().bytes());
  // One-byte scales are kept in two.
  const RandomSegment floats(32, 256, QuantizationMode::kNvfp4, 7);
  EXPECT_EQ(DescribePacked(floats.segment()).bytes(),
            floats.segment().bytes() + 32 * floats.segment().groups());
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
  segment.group_size = 16;
  EXPECT_THROW(DescribePacked(segment), Error);
  segment.mode = QuantizationMode::kNvfp4;
  EXPECT_NO_THROW(DescribePacked(segment));
  segment.cols = 48;
  EXPECT_THROW(DescribePacked(segment), Error);
}

}  // namespace
}  // namespace adder
