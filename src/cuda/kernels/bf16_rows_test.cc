// Rows and weights that become operands of products. Runs where there is a CUDA device.
#include "cuda/kernels/bf16_rows.h"

#include "cuda/kernels/matrices_for_test.h"

namespace adder::cuda::test {
namespace {

class Bf16RowsKernels : public KernelTest {};

// In place, in groups, with a gate, with more of a group than registers hold.
TEST_F(Bf16RowsKernels, NormsInPlaceAndGates) {
  constexpr int kRows = 3;
  struct Sizes {
    int width;
    int groups;
  };
  for (const Sizes& sizes : {Sizes{43, 1}, Sizes{96, 4}, Sizes{9000, 1}}) {
    for (const bool gates : {false, true}) {
      SCOPED_TRACE(testing::Message() << sizes.width << " in " << sizes.groups << ", " << gates);
      Numbers numbers(43);
      const int stride = Bf16Stride(sizes.width);
      const int gate_stride = (sizes.width + 3) / 4 * 4 + 8;
      std::vector<__nv_bfloat16> rows;
      for (float x : numbers.Vector(static_cast<size_t>(kRows * stride), 2)) {
        rows.push_back(__float2bfloat16(x));
      }
      const std::vector<float> weight = numbers.Vector(static_cast<size_t>(sizes.width), 0.5f, 1);
      const std::vector<float> gate = numbers.Vector(static_cast<size_t>(kRows * gate_stride), 2);
      const DeviceArray<__nv_bfloat16> device_rows(rows);
      const DeviceArray<float> device_weight(weight), device_gate(gate);
      Bf16NormParams p;
      p.bf16_input = p.output = device_rows.data();
      p.stride = stride;
      p.rows = kRows;
      p.width = sizes.width;
      p.groups = sizes.groups;
      p.weight = device_weight.data();
      p.eps = 0.01f;
      if (gates) p.gate = device_gate.data();
      p.gate_stride = gate_stride;
      const Stream stream;
      LaunchBf16Norm(p, stream.get());
      stream.Synchronize();
      const std::vector<float> found = Widened(device_rows.Download());
      const std::vector<float> from = Widened(rows);
      const int size = sizes.width / sizes.groups;
      for (int row = 0; row < kRows; ++row) {
        for (int i = 0; i < stride; ++i) {
          const auto at = static_cast<size_t>(row * stride + i);
          double expected = 0;
          if (i < sizes.width) {
            double squares = 0;
            for (int n = i / size * size; n < (i / size + 1) * size; ++n) {
              const double x = from[static_cast<size_t>(row * stride + n)];
              squares += x * x;
            }
            expected = from[at] * weight[static_cast<size_t>(i)] / std::sqrt(squares / size + 0.01);
            const double z = gate[static_cast<size_t>(row * gate_stride + i)];
            if (gates) expected *= z / (1 + std::exp(-z));
          }
          ASSERT_NEAR(found[at], expected, 0.005 * std::abs(expected) + 1e-6)
              << "row " << row << " column " << i;
        }
      }
    }
  }
}

// Parts of a row whose width eight does not divide have padding behind each.
TEST_F(Bf16RowsKernels, WidensParts) {
  constexpr int kRows = 3;
  for (const int part : {16, 13}) {
    constexpr int kParts = 5;
    const int width = kParts * part;
    const int stride = width + 3;
    Numbers numbers(44);
    std::vector<__nv_bfloat16> rows;
    for (float x : numbers.Vector(static_cast<size_t>(kRows * kParts * Bf16Stride(part)))) {
      rows.push_back(__float2bfloat16(x));
    }
    const DeviceArray<__nv_bfloat16> device_rows(rows);
    const DeviceArray<float> output(static_cast<size_t>(kRows * stride));
    const Stream stream;
    LaunchWiden(device_rows.data(), kRows, width, kParts, output.data(), stride, stream.get());
    stream.Synchronize();
    const std::vector<float> found = output.Download();
    const std::vector<float> from = Widened(rows);
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < width; ++i) {
        const int at = (row * kParts + i / part) * Bf16Stride(part) + i % part;
        EXPECT_EQ(found[static_cast<size_t>(row * stride + i)], from[static_cast<size_t>(at)]);
      }
    }
  }
}

TEST_F(Bf16RowsKernels, UnpacksStacks) {
  constexpr int kCount = 3;
  constexpr int kRowsOf = 21;
  for (const Format& format : kFormats) {
    // Groups of quantised weights are whole.
    const int cols = format.bits == 0 ? 76 : 128;
    const int stride = Bf16Stride(cols);
    for (const bool interleaved : {false, true}) {
      const int rows = interleaved ? 2 * kRowsOf : kRowsOf;
      const Matrices matrices(format, kCount, rows, cols, interleaved, 6);
      const DeviceArray<__nv_bfloat16> output(std::vector<__nv_bfloat16>(
          static_cast<size_t>(kCount * rows * stride), __float2bfloat16(NAN)));
      const Stream stream;
      LaunchUnpack(matrices.view, kCount, output.data(), stream.get());
      stream.Synchronize();
      const std::vector<float> found = Widened(output.Download());
      for (int i = 0; i < kCount * rows * stride; ++i) {
        const int row = i / stride;
        const int col = i % stride;
        const double expected = col < cols ? matrices.at(row / rows, row % rows, col) : 0;
        ASSERT_NEAR(found[static_cast<size_t>(i)], expected, 0.005 * std::abs(expected) + 1e-6)
            << format << ", row " << row << ", column " << col;
      }
    }
  }
}

}  // namespace
}  // namespace adder::cuda::test
