// The kernel that finishes products against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/linear_finish.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/dtype.h"
#include "cuda/kernels/activated_for_test.h"
#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

class LinearFinish : public KernelTest {
 protected:
  // Runs `p`, whose sizes and rules are set, over random numbers, and compares. Memory between the
  // rows must stay as it is.
  static void Check(FinishParams p, bool has_bias, bool has_row_gate, bool has_addend = false,
                    bool has_factor = false) {
    Numbers numbers(3);
    const int of_products = p.gated ? 2 * p.width : p.width;
    p.products_stride = of_products + 5;
    p.output_stride = p.width + 3;
    p.rounded_output_stride = p.width + 8;
    p.row_gate_stride = 4;
    const auto at = [](int row, int stride, int index) {
      return static_cast<size_t>(row * stride + index);
    };
    const std::vector<float> products =
        numbers.Vector(static_cast<size_t>(p.rows * p.products_stride), 4);
    const std::vector<float> bias = numbers.Vector(static_cast<size_t>(of_products), 2);
    const std::vector<float> gates = numbers.Vector(static_cast<size_t>(p.rows * 4), 3);
    const std::vector<float> before =
        numbers.Vector(static_cast<size_t>(p.rows * p.output_stride), 2);
    const DeviceArray<float> device_products(products), device_bias(bias), device_gates(gates),
        output(before);
    p.addend_stride = of_products + 2;
    p.factor_stride = p.width + 7;
    const std::vector<float> addend =
        numbers.Vector(static_cast<size_t>(p.rows * p.addend_stride), 2);
    const std::vector<float> factor = numbers.Vector(static_cast<size_t>(p.rows * p.factor_stride));
    const DeviceArray<float> device_addend(addend), device_factor(factor);
    if (has_addend) p.addend = device_addend.data();
    if (has_factor) p.factor = device_factor.data();
    const DeviceArray<uint16_t> rounded(static_cast<size_t>(p.rows * p.rounded_output_stride));
    p.products = device_products.data();
    if (has_bias) p.bias = device_bias.data();
    if (has_row_gate) p.row_gate = device_gates.data();
    p.output = output.data();
    p.rounded_output = rounded.data();
    const Stream stream;
    LaunchFinish(p, stream.get());
    stream.Synchronize();

    const std::vector<float> found = output.Download();
    const std::vector<uint16_t> found_rounded = rounded.Download();
    for (int row = 0; row < p.rows; ++row) {
      for (int i = 0; i < p.output_stride; ++i) {
        const size_t index = at(row, p.output_stride, i);
        if (i >= p.width) {
          ASSERT_EQ(found[index], before[index]) << "row " << row << " column " << i;
          continue;
        }
        const auto value = [&](int r) {
          double z = p.input_scale * static_cast<double>(products[at(row, p.products_stride, r)]);
          if (has_bias) z += bias[static_cast<size_t>(r)];
          for (int f = p.factor_count - 1; f >= 0; --f) {
            if (r < p.factor_ends[f] && (f == 0 || r >= p.factor_ends[f - 1])) z *= p.factors[f];
          }
          return z + (has_addend ? addend[at(row, p.addend_stride, r)] : 0.0f);
        };
        double y = value(i);
        if (p.gated || p.activates) y = Activated(p.activation, y);
        if (p.gated) y *= value(p.width + i);
        if (has_row_gate) y *= Sigmoid(gates[static_cast<size_t>(row * 4)]);
        if (has_factor) y *= factor[at(row, p.factor_stride, i)];
        y = p.scale * y + (p.adds ? before[index] : 0.0f);
        if (p.cap > 0) y = p.cap * std::tanh(y / p.cap);
        ASSERT_NEAR(found[index], y, 2e-5 * (1 + std::abs(y))) << "row " << row << " column " << i;
        ASSERT_EQ(found_rounded[at(row, p.rounded_output_stride, i)], FloatToBF16(found[index]));
      }
    }
  }
};

TEST_F(LinearFinish, AddendsFactorsAndCaps) {
  FinishParams p;
  p.rows = 3;
  p.width = 140;
  p.factor_count = 1;
  p.factor_ends[0] = 30;
  p.factors[0] = -2;
  p.cap = 1.5f;
  p.scale = 0.75f;
  Check(p, true, false, true, false);
  p.cap = 0;
  p.activates = true;
  p.activation = Activation::kGeluTanh;
  Check(p, false, false, true, true);
  p.gated = true;
  Check(p, true, true, true, false);
}

TEST_F(LinearFinish, Activations) {
  for (const Activation activation :
       {Activation::kSilu, Activation::kGelu, Activation::kGeluTanh, Activation::kRelu2,
        Activation::kSigmoid, Activation::kTanh}) {
    for (const bool gated : {false, true}) {
      FinishParams p;
      p.rows = 3;
      p.width = 301;
      p.gated = gated;
      p.activates = true;
      p.activation = activation;
      Check(p, gated, !gated);
      Check(p, !gated, gated);
    }
  }
}

TEST_F(LinearFinish, ScaledRows) {
  FinishParams p;
  p.rows = 2;
  p.width = 90;
  p.input_scale = 0.75f;
  p.factor_count = 3;
  const int ends[] = {7, 64, 90};
  const float factors[] = {0.5f, -3.0f, 1.25f};
  std::copy_n(ends, 3, p.factor_ends);
  std::copy_n(factors, 3, p.factors);
  Check(p, true, false);
  p.adds = true;
  p.scale = 0.3f;
  Check(p, true, false);
  // Factors of gate | up.
  p.adds = false;
  p.scale = 1;
  p.width = 45;
  p.gated = true;
  Check(p, false, true);
}

}  // namespace
}  // namespace adder::cuda::test
