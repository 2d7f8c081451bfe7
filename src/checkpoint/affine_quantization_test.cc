#include "checkpoint/affine_quantization.h"

#include <gtest/gtest.h>
#include <algorithm>

#include <cmath>
#include <limits>
#include <vector>

#include "core/weight_matrix.h"

namespace adder {
namespace {

// Two groups of different range, sign and centre, no value twice.
std::vector<float> TestRow(int group_size) {
  std::vector<float> row(static_cast<size_t>(2 * group_size));
  for (size_t i = 0; i < row.size(); ++i) {
    const float x = static_cast<float>(i);
    const bool second = i >= static_cast<size_t>(group_size);
    row[i] = second ? -3.0f + 0.75f * std::sin(1.7f * x) : 0.2f + std::cos(0.9f * x);
  }
  return row;
}

// Code k of a packed row, read bit by bit from the definition: a little-endian bit stream.
unsigned CodeAt(const std::vector<std::byte>& packed, int bits, size_t k) {
  unsigned code = 0;
  for (int b = 0; b < bits; ++b) {
    const size_t bit = k * static_cast<size_t>(bits) + static_cast<size_t>(b);
    const unsigned byte = std::to_integer<unsigned>(packed[bit / 8]);
    code |= (byte >> (bit % 8) & 1u) << b;
  }
  return code;
}

struct Case {
  int bits;
  int group_size;
  DType dtype;
};
std::vector<Case> AllCases() {
  std::vector<Case> cases;
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group_size : {32, 64, 128}) {
      for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
        cases.push_back({bits, group_size, dtype});
      }
    }
  }
  return cases;
}
std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.bits << " bits, groups of " << c.group_size << ", " << DTypeName(c.dtype);
}

class QuantizeRowTest : public ::testing::TestWithParam<Case> {};

TEST_P(QuantizeRowTest, PacksTheNearestCodesAndReadsThemBack) {
  const auto [bits, group_size, dtype] = GetParam();
  const std::vector<float> row = TestRow(group_size);
  std::vector<std::byte> packed(row.size() * static_cast<size_t>(bits) / 8);
  std::vector<std::byte> scales(2 * DTypeSize(dtype)), biases(scales.size());
  ASSERT_TRUE(
      QuantizeRow(row, bits, group_size, dtype, packed.data(), scales.data(), biases.data()));

  MatrixSegment segment;
  segment.rows = 1;
  segment.cols = static_cast<int64_t>(row.size());
  segment.dtype = dtype;
  segment.bits = bits;
  segment.group_size = group_size;
  segment.data = packed.data();
  segment.scales = scales.data();
  segment.biases = biases.data();
  std::vector<float> read(row.size());
  DequantizeRow(segment, 0, read.data());

  const unsigned largest = (1u << bits) - 1u;
  for (size_t i = 0; i < row.size(); ++i) {
    const size_t group = i / static_cast<size_t>(group_size);
    const float scale = LoadFloat(scales.data(), dtype, group);
    const float bias = LoadFloat(biases.data(), dtype, group);
    const unsigned code = CodeAt(packed, bits, i);
    ASSERT_LE(code, largest);
    ASSERT_EQ(read[i], static_cast<float>(code) * scale + bias) << i;
    // No other code would have been nearer (up to the rounding of the comparison itself).
    const float error = std::abs(row[i] - read[i]);
    for (unsigned other : {code == 0 ? code : code - 1, code == largest ? code : code + 1}) {
      EXPECT_LE(error, std::abs(row[i] - (static_cast<float>(other) * scale + bias)) + 1e-6f) << i;
    }
  }
  // The second group lies below zero: its lowest value is its edge of larger magnitude, which is
  // kept up to the rounding of the bias.
  EXPECT_GT(LoadFloat(scales.data(), dtype, 1), 0.0f);
  EXPECT_LT(LoadFloat(scales.data(), dtype, 0), 0.0f);
  const auto lowest = std::min_element(row.begin() + group_size, row.end());
  EXPECT_NEAR(read[static_cast<size_t>(lowest - row.begin())], *lowest, 3.75f * 0x1p-8f);
}

INSTANTIATE_TEST_SUITE_P(AllFormats, QuantizeRowTest, ::testing::ValuesIn(AllCases()));

TEST(QuantizeRow, ConstantAndZeroGroupsAreExact) {
  std::vector<float> row(64, 0.0f);
  for (size_t i = 32; i < 64; ++i) row[i] = -0.375f;
  std::vector<std::byte> packed(32), scales(4), biases(4);
  ASSERT_TRUE(QuantizeRow(row, 4, 32, DType::kF16, packed.data(), scales.data(), biases.data()));
  MatrixSegment segment;
  segment.rows = 1;
  segment.cols = 64;
  segment.dtype = DType::kF16;
  segment.bits = 4;
  segment.group_size = 32;
  segment.data = packed.data();
  segment.scales = scales.data();
  segment.biases = biases.data();
  std::vector<float> read(64);
  DequantizeRow(segment, 0, read.data());
  for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(read[i], row[i], 1e-6f) << i;
}

TEST(QuantizeRow, RefusesValuesThatAreNotFinite) {
  std::vector<std::byte> packed(32), scales(8), biases(8);
  const auto accepts = [&](float value, DType dtype) {
    std::vector<float> row = TestRow(32);
    row[40] = value;
    return QuantizeRow(row, 4, 32, dtype, packed.data(), scales.data(), biases.data());
  };
  EXPECT_TRUE(accepts(2.0f, DType::kF32));
  EXPECT_FALSE(accepts(std::numeric_limits<float>::quiet_NaN(), DType::kF32));
  EXPECT_FALSE(accepts(-std::numeric_limits<float>::infinity(), DType::kF32));
  EXPECT_FALSE(accepts(1e6f, DType::kF16));  // beyond the largest f16
}

}  // namespace
}  // namespace adder
