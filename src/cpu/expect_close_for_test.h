// For tests of kernels that do some hundred f32 operations per value.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace adder {

// Every value to 1e-5 of the largest, or of one where all are small: exp and log1p are good to a
// few units in the last place.
inline void ExpectClose(const std::vector<float>& expected, const std::vector<float>& actual) {
  ASSERT_EQ(expected.size(), actual.size());
  float size = 0;
  for (float value : expected) size = std::max(size, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(expected[i], actual[i], 1e-5f * (size + 1)) << "at " << i;
  }
}

}  // namespace adder
