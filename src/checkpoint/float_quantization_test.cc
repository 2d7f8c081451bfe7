#include "checkpoint/float_quantization.h"

#include <gtest/gtest.h>
#include <algorithm>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/small_float.h"

namespace adder {
namespace {

struct Quantized {
  std::vector<std::byte> packed;
  std::vector<std::byte> scales;
  bool good = false;

  std::vector<float> Read(QuantizationMode mode) const {
    MatrixSegment segment;
    segment.rows = 1;
    segment.bits = ModeBits(mode);
    segment.group_size = ModeGroupSize(mode);
    segment.mode = mode;
    segment.dtype = DType::kU8;
    segment.cols = static_cast<int64_t>(scales.size()) * segment.group_size;
    segment.data = packed.data();
    segment.scales = scales.data();
    std::vector<float> values(static_cast<size_t>(segment.cols));
    DequantizeRow(segment, 0, values.data());
    return values;
  }
};

Quantized Quantize(const std::vector<float>& row, QuantizationMode mode) {
  Quantized out;
  out.packed.resize(row.size() * static_cast<size_t>(ModeBits(mode)) / 8);
  out.scales.resize(row.size() / static_cast<size_t>(ModeGroupSize(mode)));
  out.good = QuantizeFloatRow(row, mode, out.packed.data(), out.scales.data());
  return out;
}

std::vector<std::byte> Bytes(const std::vector<uint32_t>& words) {
  std::vector<std::byte> bytes(words.size() * 4);
  std::memcpy(bytes.data(), words.data(), bytes.size());
  return bytes;
}
std::vector<std::byte> Bytes(const std::vector<uint8_t>& codes) {
  std::vector<std::byte> bytes(codes.size());
  std::memcpy(bytes.data(), codes.data(), bytes.size());
  return bytes;
}

// Sixteen weights below 3 and sixteen below 0.25.
std::vector<float> Wave() {
  std::vector<float> row(32);
  for (size_t k = 0; k < 32; ++k) {
    row[k] =
        static_cast<float>(std::sin(1.7 * static_cast<double>(k) + 0.3) * (k < 16 ? 3.0 : 0.25));
  }
  return row;
}

// What mx.quantize and mx.dequantize of mlx 0.32.4 (CPU) give for it.
TEST(QuantizeFloatRow, GivesTheBytesOfMlx) {
  const Quantized mxfp4 = Quantize(Wave(), QuantizationMode::kMxfp4);
  EXPECT_EQ(mxfp4.packed,
            Bytes(std::vector<uint32_t>{0xcf66ed74, 0x6fc72f17, 0x10901091, 0x01991090}));
  EXPECT_EQ(mxfp4.scales, Bytes(std::vector<uint8_t>{0x7e}));
  EXPECT_EQ(mxfp4.Read(QuantizationMode::kMxfp4),
            (std::vector<float>{1.0f,  3.0f,   -1.5f, -2.0f, 2.0f,   2.0f,   -3.0f, -1.0f,
                                3.0f,  0.25f,  -3.0f, 0.5f,  3.0f,   -1.0f,  -3.0f, 2.0f,
                                0.25f, -0.25f, 0.0f,  0.25f, 0.0f,   -0.25f, 0.0f,  0.25f,
                                0.0f,  -0.25f, 0.0f,  0.25f, -0.25f, -0.25f, 0.25f, 0.0f}));
  const Quantized mxfp8 = Quantize(Wave(), QuantizationMode::kMxfp8);
  EXPECT_EQ(mxfp8.packed,
            Bytes(std::vector<uint32_t>{0xf9f57b6e, 0xf1fb7679, 0x66fc627c, 0x77faf27c, 0x5fd8dd5b,
                                        0x600fe050, 0x5d58dfd0, 0x555edadb}));
  EXPECT_EQ(mxfp8.scales, Bytes(std::vector<uint8_t>{0x78}));
  const std::vector<float> eighths = mxfp8.Read(QuantizationMode::kMxfp8);
  EXPECT_EQ(eighths[0], 0.875f);
  EXPECT_EQ(eighths[17], -0.203125f);
  EXPECT_EQ(eighths[22], 0.0002288818359375f);
  const Quantized nvfp4 = Quantize(Wave(), QuantizationMode::kNvfp4);
  EXPECT_EQ(nvfp4.packed,
            Bytes(std::vector<uint32_t>{0xcf66ed74, 0x6fc72f17, 0x70f37de6, 0x47ee65fb}));
  EXPECT_EQ(nvfp4.scales, Bytes(std::vector<uint8_t>{0x30, 0x13}));
  const std::vector<float> sixteenths = nvfp4.Read(QuantizationMode::kNvfp4);
  EXPECT_EQ(sixteenths[15], 2.0f);
  EXPECT_EQ(sixteenths[16], 0.171875f);
  EXPECT_EQ(sixteenths[31], 0.0859375f);
}

TEST(QuantizeFloatRow, NumbersOfTheFormatsAreExact) {
  std::vector<float> row(32);
  for (size_t k = 0; k < 32; ++k) row[k] = 0.25f * E2M1ToFloat(static_cast<unsigned>(k * 7 % 16));
  for (const QuantizationMode mode : {QuantizationMode::kMxfp4, QuantizationMode::kNvfp4}) {
    EXPECT_EQ(Quantize(row, mode).Read(mode), row) << QuantizationModeName(mode);
  }
  for (size_t k = 0; k < 32; ++k) row[k] = 8.0f * E4M3ToFloat(static_cast<unsigned>(k * 4 + 2));
  EXPECT_EQ(Quantize(row, QuantizationMode::kMxfp8).Read(QuantizationMode::kMxfp8), row);
}

TEST(QuantizeFloatRow, GroupsOfZerosStayZeros) {
  for (const QuantizationMode mode :
       {QuantizationMode::kMxfp4, QuantizationMode::kMxfp8, QuantizationMode::kNvfp4}) {
    const Quantized zeros = Quantize(std::vector<float>(32, 0.0f), mode);
    EXPECT_TRUE(zeros.good);
    EXPECT_EQ(zeros.scales[0], mode == QuantizationMode::kNvfp4 ? std::byte{0} : std::byte{127});
    EXPECT_EQ(zeros.Read(mode), std::vector<float>(32, 0.0f));
  }
}

TEST(QuantizeFloatRow, RefusesWhatTheModeCannotHold) {
  const auto accepts = [](float value, QuantizationMode mode) {
    std::vector<float> row = Wave();
    row[5] = value;
    return Quantize(row, mode).good;
  };
  EXPECT_FALSE(accepts(std::numeric_limits<float>::quiet_NaN(), QuantizationMode::kMxfp4));
  EXPECT_FALSE(accepts(std::numeric_limits<float>::infinity(), QuantizationMode::kMxfp8));
  EXPECT_TRUE(accepts(-2688.0f, QuantizationMode::kNvfp4));  // 6 * 448
  EXPECT_FALSE(accepts(-2700.0f, QuantizationMode::kNvfp4));
  // The next power of two, times the largest number, is beyond f32.
  EXPECT_FALSE(accepts(3.3e38f, QuantizationMode::kMxfp4));
  EXPECT_FALSE(accepts(-3.3e38f, QuantizationMode::kMxfp8));
  EXPECT_TRUE(accepts(1e38f, QuantizationMode::kMxfp4));
  EXPECT_TRUE(accepts(1e30f, QuantizationMode::kMxfp4));
}

}  // namespace
}  // namespace adder
