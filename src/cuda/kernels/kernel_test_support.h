// For tests of kernels: random numbers, errors per row, and skipping where there is no device.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "cuda/cuda_call.h"
#include "cuda/kernels/device_data_for_test.h"

namespace adder::cuda::test {

// Skips where there is no device.
class KernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
  }
};

// Deterministic numbers, uniform in [-1, 1).
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  float Next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return static_cast<float>(state_ >> 40) / static_cast<float>(1 << 23) - 1.0f;
  }
  std::vector<float> Vector(size_t count, float scale = 1, float offset = 0) {
    std::vector<float> values(count);
    for (float& value : values) value = offset + scale * Next();
    return values;
  }

 private:
  uint64_t state_;
};

// |found - expected| / |expected| over `count` elements from `from` on; infinity for a value that
// is not finite.
inline double RelativeError(const std::vector<float>& found, const std::vector<double>& expected,
                            size_t from, size_t count) {
  double error = 0;
  double size = 0;
  for (size_t i = from; i < from + count; ++i) {
    if (!std::isfinite(found[i])) return INFINITY;
    error += (found[i] - expected[i]) * (found[i] - expected[i]);
    size += expected[i] * expected[i];
  }
  return std::sqrt(error / size);
}

}  // namespace adder::cuda::test
