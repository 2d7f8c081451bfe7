// The kernels that apply a rule to rows of a long slice. Runs where there is a CUDA device.
#include "cuda/kernels/ruled_rows.h"

#include <gtest/gtest.h>

#include "cuda/kernels/activated_for_test.h"
#include "cuda/kernels/bf16_rows.h"
#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

class RuledRowsKernels : public KernelTest {};

TEST_F(RuledRowsKernels, ActivatesAndGates) {
  constexpr int kRows = 3;
  for (const int width : {300, 43}) {
    for (const bool gated : {false, true}) {
      for (const Activation activation : {Activation::kRelu2, Activation::kGeluTanh}) {
        const int in_width = gated ? 2 * width : width;
        Numbers numbers(19);
        std::vector<__nv_bfloat16> products;
        for (float x : numbers.Vector(static_cast<size_t>(kRows * Bf16Stride(in_width)), 3)) {
          products.push_back(__float2bfloat16(x));
        }
        const std::vector<float> factors = numbers.Vector(static_cast<size_t>(in_width), 1, 0.5f);
        const std::vector<float> bias = numbers.Vector(static_cast<size_t>(in_width));
        const DeviceArray<__nv_bfloat16> device_products(products);
        const int times_stride = width + 3;
        const std::vector<float> times = numbers.Vector(static_cast<size_t>(kRows * times_stride));
        const DeviceArray<float> device_factors(factors), device_bias(bias), device_times(times);
        const DeviceArray<__nv_bfloat16> output(static_cast<size_t>(kRows * Bf16Stride(width)));
        RuledRows p;
        p.products = device_products.data();
        p.rows = kRows;
        p.width = width;
        p.gated = gated;
        p.activation = activation;
        if (gated) p.factors = device_factors.data();
        p.bias = device_bias.data();
        const bool multiplies = !gated && activation == Activation::kGeluTanh;
        if (multiplies) p.times = device_times.data();
        p.times_stride = times_stride;
        p.output = output.data();
        const Stream stream;
        LaunchRuledRows(p, stream.get());
        stream.Synchronize();
        const std::vector<float> found = Widened(output.Download());
        const std::vector<float> from = Widened(products);
        for (int row = 0; row < kRows; ++row) {
          const auto value = [&](int r) {
            const auto index = static_cast<size_t>(r);
            return (gated ? factors[index] : 1.0) *
                       from[static_cast<size_t>(row * Bf16Stride(in_width) + r)] +
                   bias[index];
          };
          for (int i = 0; i < Bf16Stride(width); ++i) {
            double y = 0;
            if (i < width) y = Activated(activation, value(i)) * (gated ? value(width + i) : 1);
            if (multiplies && i < width) y *= times[static_cast<size_t>(row * times_stride + i)];
            ASSERT_NEAR(found[static_cast<size_t>(row * Bf16Stride(width) + i)], y,
                        0.005 * std::abs(y) + 1e-5)
                << "row " << row << " column " << i;
          }
        }
      }
    }
  }
}

TEST_F(RuledRowsKernels, ScalesInPlace) {
  constexpr int kRows = 2;
  constexpr int kWidth = 290;
  constexpr int kStride = 293;
  Numbers numbers(20);
  const std::vector<float> before = numbers.Vector(kRows * kStride);
  const std::vector<float> factors = numbers.Vector(kWidth), bias = numbers.Vector(kWidth);
  const DeviceArray<float> device_factors(factors), device_bias(bias), output(before);
  const Stream stream;
  LaunchScaleRows(device_factors.data(), device_bias.data(), 0.5f, kRows, kWidth, output.data(),
                  kStride, stream.get());
  stream.Synchronize();
  const std::vector<float> found = output.Download();
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t col = i % kStride;
    const float expected = col < kWidth ? 0.5f * (factors[col] * before[i] + bias[col]) : before[i];
    ASSERT_NEAR(found[i], expected, 1e-6) << i;
  }
}

}  // namespace
}  // namespace adder::cuda::test
