// Values for tests of kernels.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

namespace adder {

// Deterministic values without symmetry between channels, taps, heads, state rows and tokens.
inline std::vector<float> Wave(int64_t size, float step, float offset, float height) {
  std::vector<float> values(static_cast<size_t>(size));
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = offset + height * std::sin(step * static_cast<float>(i + 1));
  }
  return values;
}

}  // namespace adder
