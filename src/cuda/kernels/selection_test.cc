// What a Mamba-2 scan with a selection takes in. Runs where there is a CUDA device.
#include "cuda/kernels/selection.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

class SelectionKernels : public KernelTest {};

TEST_F(SelectionKernels, GathersAndNorms) {
  constexpr int kRows = 3;
  for (const bool norms : {false, true}) {
    for (const int states : {5, 64, 300}) {
      Numbers numbers(31);
      SelectionParams p;
      p.rows = kRows;
      p.inner = 150;
      p.states = states;
      p.x_stride = 154;
      p.b_c_stride = 2 * states + 9;
      const std::vector<float> x = numbers.Vector(static_cast<size_t>(kRows * p.x_stride));
      const std::vector<float> b_c = numbers.Vector(static_cast<size_t>(kRows * p.b_c_stride), 2);
      const std::vector<float> weights[] = {numbers.Vector(static_cast<size_t>(states), 0.5f, 1),
                                            numbers.Vector(static_cast<size_t>(states), 0.5f, 2)};
      const DeviceArray<float> device_x(x), device_b_c(b_c), b_weight(weights[0]),
          c_weight(weights[1]);
      const int width = p.inner + 2 * states;
      const DeviceArray<float> output(static_cast<size_t>(kRows * width));
      p.x = device_x.data();
      p.b_c = device_b_c.data();
      p.output = output.data();
      if (norms) {
        p.b_norm = {true, b_weight.data(), 0.01f};
        p.c_norm = {true, c_weight.data(), 0.2f};
      }
      const Stream stream;
      LaunchSelection(p, stream.get());
      stream.Synchronize();
      const std::vector<float> found = output.Download();
      for (int row = 0; row < kRows; ++row) {
        const float* of_row = found.data() + row * width;
        for (int i = 0; i < p.inner; ++i) {
          ASSERT_EQ(of_row[i], x[static_cast<size_t>(row * p.x_stride + i)]);
        }
        for (int part = 0; part < 2; ++part) {
          const float* from = b_c.data() + row * p.b_c_stride + part * states;
          double squares = 0;
          for (int n = 0; n < states; ++n) squares += static_cast<double>(from[n]) * from[n];
          const double eps = part == 0 ? p.b_norm.eps : p.c_norm.eps;
          for (int n = 0; n < states; ++n) {
            const double expected = norms ? from[n] * weights[part][static_cast<size_t>(n)] /
                                                std::sqrt(squares / states + eps)
                                          : from[n];
            ASSERT_NEAR(of_row[p.inner + part * states + n], expected, 1e-5)
                << "row " << row << (part == 0 ? " B " : " C ") << n;
          }
        }
      }
    }
  }
}

// Parts as rows of bf16, more than a lane keeps; what is behind a part stays zero.
TEST_F(SelectionKernels, RoundsParts) {
  constexpr int kRows = 5;
  constexpr int kSizes[] = {3, 64, 300};
  constexpr int kStride = 380;
  Numbers numbers(7);
  const std::vector<float> input = numbers.Vector(static_cast<size_t>(kRows * kStride), 2);
  const std::vector<float> weight = numbers.Vector(300, 0.5f, 1);
  const DeviceArray<float> device_input(input), device_weight(weight);
  const SmallNorm norms[] = {{}, {true, nullptr, 0.01f}, {true, device_weight.data(), 0.2f}};
  const DeviceArray<__nv_bfloat16> output(
      std::vector<__nv_bfloat16>(kRows * 400, __float2bfloat16(NAN)));
  RoundedParts p;
  p.rows = kRows;
  p.input = device_input.data();
  p.input_stride = kStride;
  p.count = 3;
  int begin = 0;
  int place = 0;
  for (int i = 0; i < 3; ++i) {
    p.parts[i] = {begin, kSizes[i], norms[i], output.data() + place, 400};
    begin += kSizes[i];
    place += (kSizes[i] + 7) / 8 * 8;
  }
  const Stream stream;
  LaunchRoundParts(p, stream.get());
  stream.Synchronize();
  const std::vector<float> found = Widened(output.Download());
  for (int row = 0; row < kRows; ++row) {
    for (int i = 0; i < 3; ++i) {
      const float* from = input.data() + row * kStride + p.parts[i].begin;
      const auto at = static_cast<size_t>(row * 400 + (p.parts[i].output - output.data()));
      double squares = 0;
      for (int n = 0; n < kSizes[i]; ++n) squares += static_cast<double>(from[n]) * from[n];
      const double factor =
          norms[i].used ? 1 / std::sqrt(squares / kSizes[i] + static_cast<double>(norms[i].eps))
                        : 1;
      for (int n = 0; n < (kSizes[i] + 7) / 8 * 8; ++n) {
        const double of_weight = i == 2 && n < kSizes[i] ? weight[static_cast<size_t>(n)] : 1;
        const double expected = n < kSizes[i] ? from[n] * factor * of_weight : 0;
        ASSERT_NEAR(found[at + static_cast<size_t>(n)], expected, std::abs(expected) / 250)
            << "row " << row << ", part " << i << ", " << n;
      }
    }
  }
}

}  // namespace
}  // namespace adder::cuda::test
