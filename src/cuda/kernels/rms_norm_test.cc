// RMSNorm and what becomes of its results, against a plain reference. Runs where there is a CUDA
// device.
#include "cuda/kernels/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/dtype.h"
#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

class RmsNormKernels : public KernelTest {
 protected:
  static void Check(NormEpilogue epilogue, int width, int groups, bool in_place) {
    constexpr int kRows = 3;
    Numbers numbers(7);
    RmsNormParams p;
    p.rows = kRows;
    p.width = width;
    p.groups = groups;
    p.stride = width + 4;
    p.rounded_stride = width + 8;
    p.gate_stride = width + 12;
    p.eps = 0.05f;
    p.epilogue = epilogue;
    p.scale = -0.7f;
    const auto floats = [&](int stride) { return static_cast<size_t>(kRows * stride); };
    const std::vector<float> input = numbers.Vector(floats(p.stride), 2);
    const std::vector<float> before = in_place ? input : numbers.Vector(floats(p.stride));
    const std::vector<float> weight = numbers.Vector(static_cast<size_t>(width), 0.5f, 1);
    const std::vector<float> gate = numbers.Vector(floats(p.gate_stride), 3);
    const DeviceArray<float> device_input(input), device_weight(weight), device_gate(gate),
        output(before);
    const DeviceArray<uint16_t> rounded(floats(p.rounded_stride));
    p.input = in_place ? output.data() : device_input.data();
    p.weight = device_weight.data();
    p.gate = device_gate.data();
    p.output = output.data();
    p.rounded_output = rounded.data();
    const Stream stream;
    LaunchRmsNorm(p, stream.get());
    stream.Synchronize();
    const std::vector<float> found = output.Download();
    const std::vector<uint16_t> found_rounded = rounded.Download();
    const int size = width / groups;
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < width; ++i) {
        double squares = 0;
        for (int k = i / size * size; k < i / size * size + size; ++k) {
          const double x = input[static_cast<size_t>(row * p.stride + k)];
          squares += x * x;
        }
        const auto at = static_cast<size_t>(row * p.stride + i);
        double y = input[at] * weight[static_cast<size_t>(i)] /
                   std::sqrt(squares / size + static_cast<double>(p.eps));
        const double z = gate[static_cast<size_t>(row * p.gate_stride + i)];
        if (epilogue == NormEpilogue::kAdd) y = before[at] + p.scale * y;
        if (epilogue == NormEpilogue::kGate) y *= z / (1 + std::exp(-z));
        ASSERT_NEAR(found[at], y, 1e-5 * (1 + std::abs(y))) << "row " << row << " element " << i;
        ASSERT_EQ(found_rounded[static_cast<size_t>(row * p.rounded_stride + i)],
                  FloatToBF16(found[at]));
      }
      for (int i = width; i < p.stride; ++i) {
        const auto at = static_cast<size_t>(row * p.stride + i);
        ASSERT_EQ(found[at], before[at]);
      }
    }
  }
};

// Rows that a block's registers hold, and longer ones.
TEST_F(RmsNormKernels, Stores) {
  Check(NormEpilogue::kStore, 96, 1, false);
  Check(NormEpilogue::kStore, 2800, 2, false);
}
TEST_F(RmsNormKernels, Adds) {
  Check(NormEpilogue::kAdd, 1030, 1, false);
  Check(NormEpilogue::kAdd, 60, 3, false);
}
TEST_F(RmsNormKernels, Gates) {
  Check(NormEpilogue::kGate, 2304, 2, true);
  Check(NormEpilogue::kGate, 70, 1, true);
  Check(NormEpilogue::kGate, 40, 4, false);
}

}  // namespace
}  // namespace adder::cuda::test
