#include "core/small_float.h"

#include <gtest/gtest.h>

#include <vector>

namespace adder {
namespace {

// The tables are MLX's: mx.dequantize of every code with a scale of one (mlx 0.32).
TEST(SmallFloat, E2M1HasSixteenCodes) {
  const std::vector<float> values = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (unsigned code = 0; code < 8; ++code) {
    EXPECT_EQ(E2M1ToFloat(code), values[code]);
    EXPECT_EQ(E2M1ToFloat(code | 8u), -values[code]);
    EXPECT_EQ(FloatToE2M1(values[code]), code);
    EXPECT_EQ(FloatToE2M1(-values[code]), code == 0 ? 0 : code | 8u);
  }
}

TEST(SmallFloat, E2M1RoundsHalvesToTheEvenCode) {
  EXPECT_EQ(FloatToE2M1(0.25f), 0);
  EXPECT_EQ(FloatToE2M1(0.2500001f), 1);
  EXPECT_EQ(FloatToE2M1(0.75f), 2);
  EXPECT_EQ(FloatToE2M1(1.25f), 2);
  EXPECT_EQ(FloatToE2M1(1.75f), 4);
  EXPECT_EQ(FloatToE2M1(2.5f), 4);
  EXPECT_EQ(FloatToE2M1(3.5f), 6);
  EXPECT_EQ(FloatToE2M1(5.0f), 6);
  EXPECT_EQ(FloatToE2M1(-5.0000005f), 15);
  EXPECT_EQ(FloatToE2M1(1e30f), 7);
  EXPECT_EQ(FloatToE2M1(-0.1f), 0);
}

TEST(SmallFloat, E4M3HasSubnormalsAndNoInfinity) {
  EXPECT_EQ(E4M3ToFloat(0x00), 0.0f);
  EXPECT_EQ(E4M3ToFloat(0x01), 0x1p-9f);
  EXPECT_EQ(E4M3ToFloat(0x07), 7 * 0x1p-9f);
  EXPECT_EQ(E4M3ToFloat(0x08), 0x1p-6f);
  EXPECT_EQ(E4M3ToFloat(0x38), 1.0f);
  EXPECT_EQ(E4M3ToFloat(0x3b), 1.375f);
  EXPECT_EQ(E4M3ToFloat(0xba), -1.25f);
  EXPECT_EQ(E4M3ToFloat(0x7e), 448.0f);
  EXPECT_EQ(E4M3ToFloat(0xfe), -448.0f);
  EXPECT_TRUE(std::isnan(E4M3ToFloat(0x7f)));
  EXPECT_TRUE(std::isnan(E4M3ToFloat(0xff)));
}

TEST(SmallFloat, E4M3RoundsToTheNearest) {
  for (unsigned code = 0; code < 0x7f; ++code) {
    const float value = E4M3ToFloat(code);
    EXPECT_EQ(FloatToE4M3(value), code);
    EXPECT_EQ(FloatToE4M3(-value), code | 0x80u);
    if (code == 0x7e) break;
    const float half = value + (E4M3ToFloat(code + 1) - value) / 2;
    EXPECT_EQ(FloatToE4M3(half), code + code % 2) << code;
    EXPECT_EQ(FloatToE4M3(std::nextafter(half, 0.0f)), code);
    EXPECT_EQ(FloatToE4M3(std::nextafter(half, 500.0f)), code + 1);
  }
  EXPECT_EQ(FloatToE4M3(1e9f), 0x7e);
}

TEST(SmallFloat, E8M0IsAPowerOfTwo) {
  EXPECT_EQ(E8M0ToFloat(127), 1.0f);
  EXPECT_EQ(E8M0ToFloat(130), 8.0f);
  EXPECT_EQ(E8M0ToFloat(0), 0x1p-127f);
  EXPECT_EQ(E8M0ToFloat(254), 0x1p127f);
  EXPECT_TRUE(std::isnan(E8M0ToFloat(255)));
  EXPECT_EQ(FloatToE8M0Up(0.0f), 127);
  EXPECT_EQ(FloatToE8M0Up(1.0f), 127);
  EXPECT_EQ(FloatToE8M0Up(1.0000001f), 128);
  EXPECT_EQ(FloatToE8M0Up(0.75f), 127);
  EXPECT_EQ(FloatToE8M0Up(0.5f), 126);
  EXPECT_EQ(FloatToE8M0Up(1e-45f), 0);
}

}  // namespace
}  // namespace adder
