#include "cpu/matmul.h"

#include <gtest/gtest.h>
#include <algorithm>

#include <cmath>
#include <vector>

#include "cpu/linear.h"
#include "cpu/random_weights_for_test.h"
#include "cpu/simd_targets_for_test.h"

namespace adder {
namespace {

class MatmulTest : public OnEveryTarget {};

// Activations of very different sizes, so that a wrong group, token or column shows.
std::vector<float> SomeActivations(int64_t tokens, int64_t cols) {
  std::vector<float> x(static_cast<size_t>(tokens * cols));
  for (size_t i = 0; i < x.size(); ++i) {
    const auto k = static_cast<float>(i % static_cast<size_t>(cols));
    const auto t = static_cast<float>(i / static_cast<size_t>(cols));
    x[i] = std::sin(1.3f * k + 0.7f * t) * (1.0f + 0.05f * t + (k > 40 ? 3.0f : 0.0f)) + 0.1f;
  }
  return x;
}

struct Packed {
  explicit Packed(const MatrixSegment& source) : matrix(DescribePacked(source)) {
    matrix.data = memory.Get(static_cast<size_t>(matrix.bytes()));
    PackBlocks(source, 0, matrix.blocks(), matrix);
  }
  Scratch<std::byte> memory;
  PackedMatrix matrix;
};

struct Quantized {
  Quantized(const std::vector<float>& x, int64_t tokens, int64_t cols, int group_size)
      : values(x.size()),
        scales(x.size() / static_cast<size_t>(group_size)),
        sums(scales.size()),
        input{group_size, values.data(), scales.data(), sums.data()} {
    QuantizeRows(x.data(), tokens, cols, group_size, 0, tokens, values.data(), scales.data(),
                 sums.data());
  }
  // The activation as its quantised form stands for it.
  float At(int64_t token, int64_t column, int64_t tokens, int64_t cols) const {
    const int64_t first = token / TokenTile() * TokenTile();
    const int64_t tile = std::min(TokenTile(), tokens - first);
    const int64_t group = column / input.group_size;
    const float scale = scales[static_cast<size_t>(first * (cols / input.group_size) +
                                                   group * tile + token - first)];
    return scale * values[static_cast<size_t>(first * cols + column / 4 * tile * 4 +
                                              (token - first) * 4 + column % 4)];
  }
  std::vector<int8_t> values;
  std::vector<float> scales;
  std::vector<float> sums;
  QuantizedInput input;
};

// scale * (W x + bias) in f64, and the sum of |w x| as the measure of rounding.
struct Expected {
  double value;
  double size;
};
template <class X>
Expected Reference(const std::vector<float>& weights, const X& x) {
  Expected result{0, 0};
  for (size_t k = 0; k < weights.size(); ++k) {
    const double product = static_cast<double>(weights[k]) * x(static_cast<int64_t>(k));
    result.value += product;
    result.size += std::abs(product);
  }
  return result;
}

TEST_P(MatmulTest, QuantizedActivationsAreNearestInGroup) {
  const int64_t cols = 96;
  const std::vector<float> x = SomeActivations(5, cols);
  const Quantized quantized(x, 5, cols, 32);
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t g = 0; g < 3; ++g) {
      float largest = 0;
      for (int64_t k = g * 32; k < g * 32 + 32; ++k) {
        largest = std::max(largest, std::abs(x[static_cast<size_t>(t * cols + k)]));
      }
      for (int64_t k = g * 32; k < g * 32 + 32; ++k) {
        EXPECT_NEAR(quantized.At(t, k, 5, cols), x[static_cast<size_t>(t * cols + k)],
                    largest / 254 * 1.001f);
      }
    }
  }
  // All zeros stay zeros.
  const Quantized zeros(std::vector<float>(64, 0.0f), 1, 64, 64);
  EXPECT_EQ(zeros.scales[0], 0.0f);
  EXPECT_EQ(zeros.sums[0], 0.0f);
}

// One format against the plain sum, for both ways to compute (E4M3 numbers have one).
void ExpectPackedProducts(const MatrixSegment& source, const std::string& name) {
  const int64_t rows = source.rows;
  const int64_t cols = source.cols;
  const Packed packed(source);
  std::vector<std::vector<float>> weights(static_cast<size_t>(rows),
                                          std::vector<float>(static_cast<size_t>(cols)));
  std::vector<float> bias;
  for (int64_t r = 0; r < rows; ++r) {
    DequantizeRow(source, r, weights[static_cast<size_t>(r)].data());
    bias.push_back(0.25f * static_cast<float>(r % 7) - 0.5f);
  }
  for (int64_t tokens : {1, 2, 5, 13, 33}) {
    const std::vector<float> x = SomeActivations(tokens, cols);
    const Quantized quantized(x, tokens, cols, source.group_size);
    for (const bool fast : {false, true}) {
      if (fast && !packed.matrix.integer()) continue;
      // The rows lie in wider rows; what is beside them must stay.
      const int64_t stride = rows + 3;
      std::vector<float> y(static_cast<size_t>(tokens * stride), 7.0f);
      const MatmulOutput output{y.data(), stride, bias.data(), 0.5f, true};
      MatmulScratch scratch;
      if (fast) {
        MatmulPackedFast(packed.matrix, 0, packed.matrix.blocks(), quantized.input, tokens, output,
                         scratch);
      } else {
        MatmulPackedF32(packed.matrix, 0, packed.matrix.blocks(), x.data(), tokens, output,
                        scratch);
      }
      for (int64_t t = 0; t < tokens; ++t) {
        for (int64_t r = 0; r < stride; ++r) {
          const float actual = y[static_cast<size_t>(t * stride + r)];
          if (r >= rows) {
            ASSERT_EQ(actual, 7.0f);
            continue;
          }
          const Expected expected = Reference(weights[static_cast<size_t>(r)], [&](int64_t k) {
            return fast ? quantized.At(t, k, tokens, cols) : x[static_cast<size_t>(t * cols + k)];
          });
          // f32 rounding of the running sum. The fast sum holds q * scale and bias apart, which
          // are larger than their sum: hence the factor.
          ASSERT_NEAR(actual, 7.0 + 0.5 * (expected.value + bias[static_cast<size_t>(r)]),
                      2e-6 * (expected.size + 8) * (fast ? 4 : 1))
              << name << ", " << rows << " rows, token " << t << " of " << tokens << ", row " << r
              << (fast ? ", fast" : ", f32");
        }
      }
    }
  }
}

// Every format and awkward size.
TEST_P(MatmulTest, PackedProductsEqualTheFormula) {
  for (int bits : {2, 3, 4, 5, 6, 8}) {
    for (int group_size : {32, 64, 128}) {
      for (int64_t rows : {1, 17, 52}) {
        const DType dtype = rows == 1 ? DType::kF32 : rows == 17 ? DType::kF16 : DType::kBF16;
        const RandomSegment source(rows, 2 * group_size, bits, group_size, dtype, 0.3f,
                                   static_cast<uint32_t>(rows + bits));
        ExpectPackedProducts(source.segment(), source.segment().FormatName());
      }
    }
  }
}

TEST_P(MatmulTest, ProductsOfSmallFloatsEqualTheFormula) {
  for (const QuantizationMode mode :
       {QuantizationMode::kMxfp4, QuantizationMode::kMxfp8, QuantizationMode::kNvfp4}) {
    for (int64_t rows : {1, 17, 52}) {
      const RandomSegment source(rows, 96, mode, static_cast<uint32_t>(rows));
      ExpectPackedProducts(source.segment(), source.segment().FormatName());
      const RandomSegment scaled(rows, 64, mode, static_cast<uint32_t>(rows), 0.7f);
      ExpectPackedProducts(scaled.segment(), scaled.segment().FormatName() + ", scaled");
    }
  }
}

TEST_P(MatmulTest, DenseProductsEqualTheFormula) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int64_t rows : {1, 4, 18}) {
      for (int64_t cols : {1, 7, 64, 100}) {
        const RandomSegment source(rows, cols, 0, 0, dtype, 0.3f, 5);
        for (int64_t tokens : {1, 2, 9, 14}) {
          const std::vector<float> x = SomeActivations(tokens, cols);
          std::vector<float> y(static_cast<size_t>(tokens * rows), 2.0f);
          std::vector<float> bias(static_cast<size_t>(rows), 0.125f);
          MatmulDense(source.segment(), 0, rows, x.data(), tokens,
                      {y.data(), rows, bias.data(), 2.0f, true});
          std::vector<float> weights(static_cast<size_t>(cols));
          for (int64_t r = 0; r < rows; ++r) {
            DequantizeRow(source.segment(), r, weights.data());
            for (int64_t t = 0; t < tokens; ++t) {
              const Expected expected = Reference(
                  weights, [&](int64_t k) { return x[static_cast<size_t>(t * cols + k)]; });
              ASSERT_NEAR(y[static_cast<size_t>(t * rows + r)],
                          2.0 + 2.0 * (expected.value + 0.125), 2e-6 * (expected.size + 4));
            }
          }
        }
      }
    }
  }
}

// The same bits for one token or many, for one range of rows or many, on one thread or several.
TEST_P(MatmulTest, BitsDoNotDependOnBatchRangeOrThreads) {
  BoundWeights weights;
  const RandomSegment q4(292, 192, 4, 64, DType::kBF16, 0.3f, 1);
  const RandomSegment q8(21, 192, 8, 32, DType::kF16, 0.3f, 2);
  const RandomSegment dense(30, 192, 0, 0, DType::kBF16, 0.3f, 3);
  const RandomSegment fp4(37, 192, QuantizationMode::kMxfp4, 4);
  const RandomSegment fp8(18, 192, QuantizationMode::kMxfp8, 5);
  const RandomSegment nv4(20, 192, QuantizationMode::kNvfp4, 6);
  constexpr int64_t kRows = 292 + 21 + 30 + 37 + 18 + 20;
  weights.matrices.push_back(
      {kRows,
       192,
       {q4.segment(), q8.segment(), dense.segment(), fp4.segment(), fp8.segment(), nv4.segment()}});
  const int64_t tokens = 29;
  const std::vector<float> x = SomeActivations(tokens, 192);
  const std::vector<float> norm = SomeActivations(1, 192);
  for (const bool quantize : {true, false}) {
    std::vector<float> first;
    for (int threads : {1, 3}) {
      ThreadPool pool(threads);
      const LoadedWeights loaded(weights, pool);
      std::vector<MatmulScratch> scratch(static_cast<size_t>(threads));
      PreparedInput input;
      for (int64_t batch : {29, 1, 2, 12}) {
        std::vector<float> y(static_cast<size_t>(tokens * kRows), 1.0f);
        for (int64_t t = 0; t < tokens; t += batch) {
          const int64_t count = std::min(batch, tokens - t);
          input.Prepare(x.data() + t * 192, 192, count, {norm.data(), 2, 1e-5f}, loaded.matrix(0),
                        quantize, pool);
          const MatmulJob job{
              &loaded.matrix(0), &input, {y.data() + t * kRows, kRows, nullptr, 0.3f, true}};
          RunMatmuls({&job, 1}, pool, scratch);
        }
        if (first.empty()) first = y;
        ASSERT_EQ(first, y) << threads << " threads, batches of " << batch;
      }
    }
  }
}

ADDER_ON_EVERY_TARGET(MatmulTest);

}  // namespace
}  // namespace adder
