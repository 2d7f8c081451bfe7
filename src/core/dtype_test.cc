#include "core/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace adder {
namespace {

TEST(DType, NamesRoundTrip) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const DType dtype = static_cast<DType>(i);
    DType parsed = DType::kF64;
    ASSERT_TRUE(ParseDType(DTypeName(dtype), parsed));
    EXPECT_EQ(parsed, dtype);
  }
  DType unused;
  EXPECT_FALSE(ParseDType("BF17", unused));
  EXPECT_FALSE(ParseDType("", unused));
  EXPECT_EQ(DTypeSize(DType::kF64), 8u);
  EXPECT_EQ(DTypeSize(DType::kBF16), 2u);
}

TEST(Float16, KnownValues) {
  EXPECT_EQ(F16ToFloat(0x3c00), 1.0f);
  EXPECT_EQ(F16ToFloat(0xc100), -2.5f);
  EXPECT_EQ(F16ToFloat(0x0001), std::ldexp(1.0f, -24));
  EXPECT_EQ(F16ToFloat(0x7bff), 65504.0f);
  EXPECT_EQ(F16ToFloat(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(FloatToF16(65519.0f), 0x7bff);
  EXPECT_EQ(FloatToF16(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToF16(-1e30f), 0xfc00);
  EXPECT_EQ(FloatToF16(std::ldexp(1.0f, -25)), 0x0000);  // tie to even
  EXPECT_EQ(FloatToF16(std::ldexp(1.5f, -25)), 0x0001);
  EXPECT_EQ(FloatToF16(std::ldexp(2047.5f, -25)), 0x0400);  // rounds up into the normals
}

TEST(Float16, EveryValueRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float value = F16ToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(F16ToFloat(FloatToF16(value))));
    } else {
      EXPECT_EQ(FloatToF16(value), bits) << value;
    }
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  EXPECT_EQ(FloatToBF16(1.0f), 0x3f80);
  EXPECT_EQ(FloatToBF16(1.00390625f), 0x3f80);         // halfway, even below
  EXPECT_EQ(FloatToBF16(1.01171875f), 0x3f82);         // halfway, even above
  EXPECT_EQ(FloatToBF16(1.0039063f + 1e-6f), 0x3f81);  // just above halfway
  EXPECT_EQ(BF16ToFloat(0xc020), -2.5f);
  EXPECT_TRUE(std::isnan(BF16ToFloat(FloatToBF16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_EQ(FloatToBF16(std::numeric_limits<float>::infinity()), 0x7f80);
}

TEST(LoadFloat, ReadsUnalignedElements) {
  alignas(8) unsigned char bytes[17] = {};
  const double value = -3.25;
  __builtin_memcpy(bytes + 1 + 8, &value, 8);
  EXPECT_EQ(LoadFloat(bytes + 1, DType::kF64, 1), -3.25f);
  const uint16_t half[2] = {0x3c00, 0xc100};
  __builtin_memcpy(bytes + 3, half, 4);
  EXPECT_EQ(LoadFloat(bytes + 3, DType::kF16, 1), -2.5f);
}

}  // namespace
}  // namespace adder
