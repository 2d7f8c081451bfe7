#include "core/small_float.h"

#include <algorithm>

namespace adder {
namespace {

// Of the increasing magnitudes of codes 0 .. largest, the nearest; halves go to the even code.
template <class ToFloat>
uint8_t NearestCode(float magnitude, unsigned largest, const ToFloat& to_float) {
  unsigned low = 0;
  unsigned high = largest;
  while (low + 1 < high) {
    const unsigned middle = (low + high) / 2;
    (to_float(middle) <= magnitude ? low : high) = middle;
  }
  // Neighbours differ by a power of two and share their high bits with `magnitude`: both
  // differences are exact wherever they decide.
  const float below = magnitude - to_float(low);
  const float above = to_float(high) - magnitude;
  if (below == above) return static_cast<uint8_t>(low % 2 == 0 ? low : high);
  return static_cast<uint8_t>(below < above ? low : high);
}

}  // namespace

uint8_t FloatToE2M1(float value) {
  const unsigned code = NearestCode(std::abs(value), 7, E2M1ToFloat);
  return static_cast<uint8_t>(code != 0 && std::signbit(value) ? code | 8u : code);
}

uint8_t FloatToE4M3(float value) {
  const unsigned code = NearestCode(std::abs(value), 0x7e, E4M3ToFloat);
  return static_cast<uint8_t>(std::signbit(value) ? code | 0x80u : code);
}

uint8_t FloatToE8M0Up(float value) {
  if (value == 0.0f) return 127;
  int exponent = 0;
  // value = fraction * 2^exponent with a fraction in [0.5, 1).
  const float fraction = std::frexp(value, &exponent);
  if (fraction == 0.5f) --exponent;
  return static_cast<uint8_t>(std::clamp(exponent, -127, 127) + 127);
}

}  // namespace adder
