#include "cuda/copied_matrix.h"

#include <gtest/gtest.h>

#include <memory>
#include <random>

namespace adder::cuda {
namespace {

constexpr QuantizationMode kModes[] = {QuantizationMode::kMxfp4, QuantizationMode::kMxfp8,
                                       QuantizationMode::kNvfp4};

// A segment of random bytes and their memory.
struct Stored {
  MatrixSegment segment;
  std::vector<std::byte> data;
  std::vector<std::byte> scales;
  std::vector<std::byte> biases;
};
using Owned = std::unique_ptr<Stored>;

// Every code but NaN, which checkpoints must not have; scales of different sizes.
Owned Random(int64_t rows, int64_t cols, QuantizationMode mode, unsigned seed) {
  auto stored = std::make_unique<Stored>();
  MatrixSegment& s = stored->segment;
  s.rows = rows;
  s.cols = cols;
  s.dtype = DType::kU8;
  s.mode = mode;
  s.bits = ModeBits(mode);
  s.group_size = ModeGroupSize(mode);
  std::mt19937 random(seed);
  stored->data.resize(static_cast<size_t>(rows * s.row_bytes()));
  for (std::byte& byte : stored->data) {
    do {
      byte = static_cast<std::byte>(random());
    } while (s.bits == 8 && (byte & std::byte{0x7f}) == std::byte{0x7f});
  }
  stored->scales.resize(static_cast<size_t>(rows * s.groups()));
  for (std::byte& byte : stored->scales) {
    // E4M3 of either sign, else 2^-7 to 2^8.
    byte = static_cast<std::byte>(mode == QuantizationMode::kNvfp4
                                      ? random() % 127 + random() % 2 * 128
                                      : 120 + random() % 16);
  }
  s.data = stored->data.data();
  s.scales = stored->scales.data();
  return stored;
}

// Dense, or affine with scales and biases of `dtype`.
Owned Others(int64_t rows, int64_t cols, DType dtype, int bits = 0, int group_size = 0) {
  auto stored = std::make_unique<Stored>();
  MatrixSegment& s = stored->segment;
  s.rows = rows;
  s.cols = cols;
  s.dtype = dtype;
  s.bits = bits;
  s.group_size = group_size;
  // Small positive numbers of any float type.
  stored->data.resize(static_cast<size_t>(rows * s.row_bytes()), std::byte{0x12});
  stored->scales.resize(static_cast<size_t>(rows * s.scale_row_bytes()), std::byte{0x11});
  stored->biases.resize(stored->scales.size(), std::byte{0x13});
  s.data = stored->data.data();
  s.scales = stored->scales.data();
  s.biases = stored->biases.data();
  return stored;
}

WeightMatrix MatrixOf(const std::vector<const Stored*>& segments) {
  WeightMatrix matrix;
  matrix.cols = segments[0]->segment.cols;
  for (const Stored* stored : segments) {
    matrix.rows += stored->segment.rows;
    matrix.segments.push_back(stored->segment);
  }
  return matrix;
}

PackedFormat FormatOf(const std::vector<const Stored*>& segments) {
  return ChooseFormat({AsCopied(MatrixOf(segments))});
}

// What is copied has, row by row, the weights that the checkpoint has.
void ExpectSameWeights(const WeightMatrix& matrix) {
  WeightMatrix copied = AsCopied(matrix);
  ASSERT_EQ(copied.rows, matrix.rows);
  ASSERT_EQ(copied.segments.size(), matrix.segments.size());
  std::vector<std::vector<float>> memory(matrix.segments.size());
  for (size_t i = 0; i < copied.segments.size(); ++i) {
    MatrixSegment& segment = copied.segments[i];
    if (matrix.segments[i].affine()) continue;
    ASSERT_FALSE(segment.quantized());
    ASSERT_EQ(segment.rows, matrix.segments[i].rows);
    // In two parts, as large matrices are copied. What is behind them stays as it is.
    const auto bytes = static_cast<size_t>(segment.bytes());
    memory[i].assign(bytes / sizeof(float) + 2, -77.0f);
    auto* data = reinterpret_cast<std::byte*>(memory[i].data());
    const int64_t first = segment.rows / 3;
    WriteDenseRows(matrix.segments[i], 0, first, segment.dtype, data);
    WriteDenseRows(matrix.segments[i], first, segment.rows - first, segment.dtype,
                   data + first * segment.row_bytes());
    EXPECT_EQ(memory[i].back(), -77.0f);
    segment.data = data;
  }
  std::vector<float> expected(static_cast<size_t>(matrix.cols));
  std::vector<float> actual(expected.size());
  for (int64_t row = 0; row < matrix.rows; ++row) {
    DequantizeRow(matrix, row, expected.data());
    DequantizeRow(copied, row, actual.data());
    ASSERT_EQ(actual, expected) << "row " << row;
  }
}

// An odd number of groups of 32 in a row.
TEST(AsCopied, KeepsEveryWeightOfSmallFloats) {
  for (const QuantizationMode mode : kModes) {
    SCOPED_TRACE(QuantizationModeName(mode));
    const Owned stored = Random(37, 3 * 32, mode, 1);
    EXPECT_EQ(AsCopied(MatrixOf({stored.get()})).segments[0].dtype, DType::kBF16);
    ExpectSameWeights(MatrixOf({stored.get()}));
    // Powers of two move no bit out of bf16, other scales of the tensor do.
    stored->segment.global_scale = 0.25f;
    EXPECT_EQ(AsCopied(MatrixOf({stored.get()})).segments[0].dtype, DType::kBF16);
    ExpectSameWeights(MatrixOf({stored.get()}));
    stored->segment.global_scale = 0.3f;
    EXPECT_EQ(AsCopied(MatrixOf({stored.get()})).segments[0].dtype, DType::kF32);
    ExpectSameWeights(MatrixOf({stored.get()}));
  }
}

TEST(AsCopied, KeepsSegmentsOfSeveralKinds) {
  const Owned mxfp4 = Random(5, 192, QuantizationMode::kMxfp4, 2);
  const Owned mxfp8 = Random(18, 192, QuantizationMode::kMxfp8, 3);
  const Owned nvfp4 = Random(7, 192, QuantizationMode::kNvfp4, 4);
  const Owned affine = Others(4, 192, DType::kF16, 4, 64);
  const Owned bf16 = Others(3, 192, DType::kBF16);
  ExpectSameWeights(
      MatrixOf({mxfp4.get(), affine.get(), mxfp8.get(), bf16.get(), nvfp4.get(), mxfp4.get()}));
}

// Every scale that a checkpoint may have: largest numbers that are finite, least ones that are
// subnormal even in f32.
TEST(AsCopied, KeepsWeightsOfExtremeScales) {
  for (const QuantizationMode mode : kModes) {
    SCOPED_TRACE(QuantizationModeName(mode));
    const Owned stored = Random(63, 4 * ModeGroupSize(mode), mode, 5);
    const size_t finite = mode == QuantizationMode::kMxfp4   ? 253
                          : mode == QuantizationMode::kMxfp8 ? 247
                                                             : 127;
    for (size_t i = 0; i < stored->scales.size(); ++i) {
      stored->scales[i] = static_cast<std::byte>(i % finite);
    }
    ExpectSameWeights(MatrixOf({stored.get()}));
    EXPECT_EQ(AsCopied(MatrixOf({stored.get()})).segments[0].dtype,
              mode == QuantizationMode::kMxfp8 ? DType::kF32 : DType::kBF16);
  }
}

// The least scale of mxfp8 makes numbers below those of bf16, but groups of zeros may have it.
TEST(AsCopied, LooksAtTheWeightsOfTheLeastScales) {
  const Owned stored = Random(4, 96, QuantizationMode::kMxfp8, 6);
  stored->scales[7] = std::byte{0};  // columns 32 .. 63 of row 2
  for (size_t k = 0; k < 32; ++k) stored->data[2 * 96 + 32 + k] = std::byte{0};
  EXPECT_EQ(AsCopied(MatrixOf({stored.get()})).segments[0].dtype, DType::kBF16);
  ExpectSameWeights(MatrixOf({stored.get()}));
  stored->data[2 * 96 + 63] = std::byte{1};  // 2^-9 * 2^-127
  EXPECT_EQ(AsCopied(MatrixOf({stored.get()})).segments[0].dtype, DType::kF32);
  ExpectSameWeights(MatrixOf({stored.get()}));
}

TEST(AsCopied, LeavesOtherSegments) {
  for (const Owned& stored : {Others(3, 64, DType::kBF16, 5, 64), Others(2, 64, DType::kF32)}) {
    const MatrixSegment copied = AsCopied(MatrixOf({stored.get()})).segments[0];
    EXPECT_EQ(copied.bits, stored->segment.bits);
    EXPECT_EQ(copied.dtype, stored->segment.dtype);
    EXPECT_EQ(copied.data, stored->segment.data);
  }
}

TEST(ChooseFormat, IsBf16ForSmallFloatsAndF32BesideOthers) {
  for (const QuantizationMode mode : kModes) {
    SCOPED_TRACE(QuantizationModeName(mode));
    const Owned stored = Random(5, 192, mode, 7);
    const Owned other = Random(3, 192, QuantizationMode::kNvfp4, 8);
    const Owned bf16 = Others(2, 192, DType::kBF16);
    const Owned f16 = Others(2, 192, DType::kF16);
    const Owned affine = Others(2, 192, DType::kBF16, 4, 64);
    EXPECT_EQ(FormatOf({stored.get()}).weights, WeightFormat::kBf16);
    EXPECT_EQ(FormatOf({stored.get()}).scales, ScaleFormat::kNone);
    EXPECT_EQ(FormatOf({stored.get(), bf16.get(), other.get()}).weights, WeightFormat::kBf16);
    EXPECT_EQ(FormatOf({stored.get(), f16.get()}).weights, WeightFormat::kF32);
    EXPECT_EQ(FormatOf({affine.get(), stored.get()}).weights, WeightFormat::kF32);
    EXPECT_EQ(FormatOf({affine.get(), stored.get()}).scales, ScaleFormat::kNone);
    // One expert of a stack decides for all.
    const Owned scaled = Random(5, 192, mode, 9);
    scaled->segment.global_scale = 0.3f;
    const std::vector<WeightMatrix> stack = {AsCopied(MatrixOf({stored.get()})),
                                             AsCopied(MatrixOf({scaled.get()}))};
    EXPECT_EQ(ChooseFormat(stack).weights, WeightFormat::kF32);
  }
}

TEST(ChooseFormat, OfAffineAndDenseSegments) {
  const Owned four = Others(2, 128, DType::kBF16, 4, 64);
  const Owned three = Others(2, 128, DType::kBF16, 3, 128);
  const Owned eight = Others(2, 128, DType::kF16, 8, 64);
  const Owned small_groups = Others(2, 128, DType::kF16, 8, 32);
  const Owned bf16 = Others(2, 128, DType::kBF16);
  const Owned f16 = Others(2, 128, DType::kF16);
  const auto expect = [](const std::vector<const Stored*>& segments, WeightFormat weights,
                         ScaleFormat scales) {
    EXPECT_EQ(FormatOf(segments).weights, weights);
    EXPECT_EQ(FormatOf(segments).scales, scales);
  };
  expect({four.get(), three.get()}, WeightFormat::kQ4, ScaleFormat::kCompactBf16);
  expect({eight.get()}, WeightFormat::kQ8, ScaleFormat::kCompactF16);
  expect({four.get(), eight.get()}, WeightFormat::kQ8, ScaleFormat::kWide);
  expect({small_groups.get()}, WeightFormat::kQ8, ScaleFormat::kWide);
  expect({bf16.get()}, WeightFormat::kBf16, ScaleFormat::kNone);
  expect({f16.get()}, WeightFormat::kF16, ScaleFormat::kNone);
  expect({bf16.get(), f16.get()}, WeightFormat::kF32, ScaleFormat::kNone);
  expect({bf16.get(), four.get()}, WeightFormat::kF32, ScaleFormat::kNone);
}

}  // namespace
}  // namespace adder::cuda
