// The floating-point numbers of four and eight bits of MLX's quantisation modes, after the OCP
// formats of the same names.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace adder {

// The largest magnitudes.
inline constexpr float kLargestE2M1 = 6.0f;
inline constexpr float kLargestE4M3 = 448.0f;

// Sign, two bits of exponent, one of mantissa: 0, 0.5, 1, 1.5, 2, 3, 4 and 6 with either sign.
inline float E2M1ToFloat(unsigned code) {
  constexpr float kValues[8] = {0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f};
  const float value = kValues[code & 7u];
  return (code & 8u) != 0 ? -value : value;
}

// Sign, four bits of exponent, three of mantissa, no infinities; all ones are NaN.
inline float E4M3ToFloat(unsigned code) {
  const unsigned magnitude = code & 0x7fu;
  if (magnitude == 0x7fu) return std::numeric_limits<float>::quiet_NaN();
  const unsigned exponent = magnitude >> 3;
  const auto mantissa = static_cast<float>(magnitude & 7u);
  const float value = exponent == 0 ? std::ldexp(mantissa, -9)
                                    : std::ldexp(8.0f + mantissa, static_cast<int>(exponent) - 10);
  return (code & 0x80u) != 0 ? -value : value;
}

// A power of two, 2^(code - 127); all ones are NaN.
inline float E8M0ToFloat(unsigned code) {
  if (code == 0xffu) return std::numeric_limits<float>::quiet_NaN();
  return std::ldexp(1.0f, static_cast<int>(code) - 127);
}

// The nearest number; halves go to the even code, larger magnitudes to the largest. `value` is not
// NaN. A negative value that rounds to zero is +0 in E2M1.
uint8_t FloatToE2M1(float value);
uint8_t FloatToE4M3(float value);
// The least power of two that is not below `value`, which is finite and not negative; 1 for 0.
uint8_t FloatToE8M0Up(float value);

}  // namespace adder
