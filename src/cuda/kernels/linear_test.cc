// The matrix kernels against sums in double, for every weight format, from one token to many. Runs
// where there is a CUDA device.
#include "cuda/kernels/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <ostream>

#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/few_linear.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/matrices_for_test.h"
#include "cuda/kernels/resident_linear.h"
#include "cuda/kernels/unpacked_linear.h"
#include "cuda/kernels/wgmma_linear.h"

namespace adder::cuda {
namespace {

using test::Format;
using test::Matrices;
using test::Numbers;
using test::OnDevice;
using test::Store;
using test::ToBf16;

struct Shape {
  int rows;
  int cols;
};
// Fewer columns than a chunk; whole chunks and spans; a rest of each; long rows; many rows, which
// on few multiprocessors are more than fit at once.
constexpr const char* kNoWgmma =
    "wgmma needs compute capability 9.0, and weights that are quantised or bf16";
constexpr Shape kShapes[] = {{24, 32}, {48, 256}, {40, 420}, {16, 5120}, {900, 192}};

// |found - expected| / |sizes| over `count` elements from `from` on; infinity for a value that is
// not finite.
double ErrorRelativeTo(const std::vector<double>& sizes, const std::vector<float>& found,
                       const std::vector<double>& expected, size_t from, size_t count) {
  double error = 0;
  double size = 0;
  for (size_t i = from; i < from + count; ++i) {
    if (!std::isfinite(found[i])) return INFINITY;
    error += (found[i] - expected[i]) * (found[i] - expected[i]);
    size += sizes[i] * sizes[i];
  }
  return std::sqrt(error / size);
}

double Silu(double x) { return x / (1 + std::exp(-x)); }

class LinearKernels : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
  }

  // Quantised rows are whole groups.
  static bool Fits(int cols) { return GetParam().bits == 0 || cols % GetParam().group_size == 0; }

  // Of the default mode: for more tokens than a few, activations, weights and the norm's weights
  // are rounded to bf16, each by up to 1/512. What an activation loses all rows lose alike, so over
  // rows it does not average out, and where a row's products nearly cancel (8-bit weights are all
  // of one sign) it counts several times. Gated outputs are products of two such sums.
  static double Tolerance(int tokens, bool gated, bool f32) {
    return f32 ? 1e-5 : tokens <= kMostFewTokens ? 2e-4 : gated ? 3e-2 : 1.5e-2;
  }

  // What a router writes for one token: weights and numbers of the chosen.
  static std::vector<float> Chosen(const Matrices& router, const std::vector<float>& bias,
                                   const std::vector<float>& input, int top_k) {
    std::vector<double> scores;
    for (int e = 0; e < router.view.rows; ++e) {
      double sum = bias[static_cast<size_t>(e)];
      for (int col = 0; col < router.view.cols; ++col) {
        sum += router.at(0, e, col) * input[static_cast<size_t>(col)];
      }
      scores.push_back(sum);
    }
    std::vector<size_t> order(scores.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    order.resize(static_cast<size_t>(top_k));
    double sum = 0;
    for (size_t e : order) sum += std::exp(scores[e] - scores[order[0]]);
    std::vector<float> chosen;
    for (size_t e : order) {
      chosen.push_back(static_cast<float>(std::exp(scores[e] - scores[order[0]]) / sum));
    }
    for (size_t e : order) chosen.push_back(static_cast<float>(e));
    return chosen;
  }

  // Rows of `input` [tokens][stride] times the matrix, with all of an epilogue's parts. With a
  // geometry, by the kernel that takes it; `resident`: by that of heads.
  void Check(const Shape& shape, int tokens, LinearEpilogue epilogue, bool f32,
             int multiprocessors = 132, const WgmmaGeometry* geometry = nullptr,
             const UnpackedGeometry* unpacked = nullptr, bool resident = false) {
    const bool gated = epilogue == LinearEpilogue::kSiluMul;
    const Matrices matrices(GetParam(), 1, shape.rows, shape.cols, gated, 11);
    const int stride = (shape.cols + 3) / 4 * 4;
    const int width = gated ? shape.rows / 2 : shape.rows;
    const int output_stride = (width + 3) / 4 * 4 + 4;
    Numbers numbers(7);
    // A row more than tokens, read in reverse order.
    const auto rows = static_cast<size_t>(tokens) + 1;
    std::vector<float> input = numbers.Vector(rows * static_cast<size_t>(stride), 2);
    // Gates are kept from large negative sums, of which silu turns rounding into large relative
    // errors.
    float size = 1;
    if (gated) {
      double squares = 0;
      for (int row = 0; row < shape.rows; ++row) {
        for (int col = 0; col < shape.cols; ++col) {
          squares += matrices.at(0, row, col) * matrices.at(0, row, col) / shape.rows;
        }
      }
      size = static_cast<float>(1 / std::sqrt(squares));
    }
    const std::vector<float> norm = numbers.Vector(static_cast<size_t>(stride), 0.5f * size, size);
    std::vector<float> bias = numbers.Vector(static_cast<size_t>(shape.rows));
    for (int row = 0; gated && row < width; ++row) bias[static_cast<size_t>(row)] += 1.5f;
    const std::vector<float> before =
        numbers.Vector(static_cast<size_t>(tokens) * static_cast<size_t>(output_stride));
    std::vector<int> order(static_cast<size_t>(tokens));
    for (int i = 0; i < tokens; ++i) order[static_cast<size_t>(i)] = tokens - i;

    const DeviceArray<float> device_input(input);
    const DeviceArray<float> device_norm(norm);
    const DeviceArray<float> device_bias(bias);
    const DeviceArray<int> device_order(order);
    const DeviceArray<float> output(before);
    LinearParams p;
    p.matrix = matrices.view;
    p.input = device_input.data();
    p.input_stride = stride;
    p.input_rows = device_order.data();
    p.tokens = tokens;
    p.norm_weight = device_norm.data();
    p.norm_eps = 1e-3f;
    p.bias = device_bias.data();
    p.epilogue = epilogue;
    p.scale = gated ? 1.0f : 0.75f;
    p.output = output.data();
    p.output_stride = output_stride;
    const Stream stream;
    const LinearShape spread = OnDevice(f32, multiprocessors);
    const int rounded_stride = (shape.cols + 7) / 8 * 8;
    const int rounded_rows = (tokens + kBatchRows - 1) / kBatchRows * kBatchRows;
    const DeviceArray<uint16_t> rounded_input(
        std::vector<uint16_t>(static_cast<size_t>(rounded_rows * rounded_stride), 0));
    const DeviceArray<uint16_t> rounded_output(std::vector<uint16_t>(before.size(), 0));
    const bool reads_rounded = ReadsRounded(spread, tokens);
    if (reads_rounded) {
      LaunchRound(p.input, stride, p.input_rows, tokens, shape.cols, rounded_input.data(),
                  rounded_stride, stream.get());
      p.rounded_input = rounded_input.data();
      p.rounded_input_stride = rounded_stride;
    }
    const bool writes_rounded = reads_rounded && !resident;
    if (writes_rounded) {
      p.rounded_output = rounded_output.data();
      p.rounded_output_stride = output_stride;
    }
    const DeviceArray<uint16_t> tiles(UnpackedBytes(matrices.view) / sizeof(uint16_t));
    if (resident) {
      LaunchUnpackTiles(matrices.view, p.norm_weight, tiles.data(), stream.get());
      ASSERT_TRUE(LaunchResidentLinear(p, tiles.data(), multiprocessors, stream.get()));
    } else if (unpacked != nullptr) {
      ASSERT_TRUE(UnpackedTakes(p, *unpacked, DeviceSharedBytes()));
      LaunchUnpackTiles(matrices.view, p.norm_weight, tiles.data(), stream.get());
      LaunchUnpackedLinear(p, tiles.data(), *unpacked, stream.get());
    } else if (geometry != nullptr) {
      ASSERT_TRUE(WgmmaTakes(p, *geometry, DeviceSharedBytes()));
      LaunchWgmmaLinear(p, *geometry, stream.get());
    } else {
      LaunchLinear(p, spread, stream.get());
    }
    stream.Synchronize();
    const std::vector<float> found = output.Download();
    const std::vector<uint16_t> copy = rounded_output.Download();

    for (int token = 0; token < tokens; ++token) {
      const float* x =
          input.data() + static_cast<size_t>(tokens - token) * static_cast<size_t>(stride);
      double squares = 0;
      for (int col = 0; col < shape.cols; ++col) squares += double{x[col]} * x[col];
      const double factor = 1 / std::sqrt(squares / shape.cols + 1e-3);
      std::vector<double> y;
      for (int row = 0; row < shape.rows; ++row) {
        double sum = bias[static_cast<size_t>(row)];
        for (int col = 0; col < shape.cols; ++col) {
          sum += matrices.at(0, row, col) * x[col] * norm[static_cast<size_t>(col)] * factor;
        }
        y.push_back(sum);
      }
      const size_t from = static_cast<size_t>(token) * static_cast<size_t>(output_stride);
      std::vector<double> expected(before.begin(), before.end());
      // What errors are relative to: the outputs, and of gated ones, which a negative gate makes
      // nothing whatever the error of its sum, the products of gates and values.
      std::vector<double> sizes = expected;
      for (int i = 0; i < width; ++i) {
        const auto index = static_cast<size_t>(i);
        const double other = gated ? y[index + static_cast<size_t>(width)] : 0;
        double value = gated ? Silu(y[index]) * other : double{p.scale} * y[index];
        if (epilogue == LinearEpilogue::kAdd) value += before[from + index];
        expected[from + index] = value;
        sizes[from + index] = gated && tokens > 1 ? y[index] * other : value;
      }
      EXPECT_LT(ErrorRelativeTo(sizes, found, expected, from, static_cast<size_t>(width)),
                Tolerance(tokens, gated, f32))
          << shape.rows << " x " << shape.cols << ", token " << token << " of " << tokens
          << (f32 ? ", f32" : "");
      for (size_t i = from; writes_rounded && i < from + static_cast<size_t>(width); ++i) {
        EXPECT_EQ(copy[i], ToBf16(found[i]));
      }
      // What is not of the row stays.
      for (size_t i = from + static_cast<size_t>(width);
           i < from + static_cast<size_t>(output_stride); ++i) {
        EXPECT_EQ(found[i], before[i]);
      }
    }
  }
};

TEST_P(LinearKernels, Store) {
  for (const Shape& shape : kShapes) {
    if (!Fits(shape.cols)) continue;
    for (int tokens : {1, 2, 3, 5, 8, 17, 130}) {
      Check(shape, tokens, LinearEpilogue::kStore, false);
    }
    for (int tokens : {1, 5}) Check(shape, tokens, LinearEpilogue::kStore, true);
  }
}

TEST_P(LinearKernels, AddAndGatedProducts) {
  for (const Shape& shape : kShapes) {
    if (!Fits(shape.cols)) continue;
    for (int tokens : {1, 2, 4, 7, 8, 40}) {
      Check(shape, tokens, LinearEpilogue::kAdd, false);
      Check(shape, tokens, LinearEpilogue::kSiluMul, false);
    }
  }
}

TEST_P(LinearKernels, MoreTilesThanFit) {
  for (LinearEpilogue epilogue :
       {LinearEpilogue::kStore, LinearEpilogue::kAdd, LinearEpilogue::kSiluMul}) {
    for (int tokens : {1, 2, 5, 8}) {
      Check({900, 192}, tokens, epilogue, false, /*multiprocessors=*/1);
    }
    // Packed to four bits it fits, a block per multiprocessor.
    Check({900, 1088}, 1, epilogue, false, /*multiprocessors=*/4);
  }
}

TEST_P(LinearKernels, LargerBatches) {
  for (int tokens : {9, 16, 33, 64, 100, 256}) {
    for (LinearEpilogue epilogue :
         {LinearEpilogue::kStore, LinearEpilogue::kAdd, LinearEpilogue::kSiluMul}) {
      Check({200, 640}, tokens, epilogue, false);
      Check({904, 2048}, tokens, epilogue, false);
    }
  }
}

// Every way of cutting rows, columns and tokens, with parts of different sizes and empty ones.
TEST_P(LinearKernels, GeometriesOfWgmma) {
  const bool has_format = GetParam().bits > 0 || GetParam().store == Store::kBf16;
  if (!DeviceHasWgmma() || !has_format) GTEST_SKIP() << kNoWgmma;
  for (const WgmmaGeometry& g : {WgmmaGeometry{16, 4, 1, 1},
                                 {16, 1, 2, 4},
                                 {32, 2, 2, 2},
                                 {32, 1, 4, 4},
                                 {64, 2, 1, 8},
                                 {64, 4, 1, 2},
                                 {64, 1, 2, 4}}) {
    // Columns enough for every block and warpgroup, and few enough for its shared memory.
    const int cols = g.split * g.column_groups <= 8 ? 576 : 1088;
    Check({232, cols}, 75, LinearEpilogue::kAdd, false, 132, &g);
    if (g.split < 8) Check({232, cols}, 75, LinearEpilogue::kSiluMul, false, 132, &g);
  }
}

// The same from weights unpacked before, by clusters that share columns, and by blocks that take
// several times 64 rows.
TEST_P(LinearKernels, GeometriesOfUnpackedWeights) {
  const bool has_format = GetParam().bits > 0 || GetParam().store == Store::kBf16;
  if (!DeviceHasWgmma() || !has_format) GTEST_SKIP() << kNoWgmma;
  for (const UnpackedGeometry& g : {UnpackedGeometry{16, 2, 1, 4, 0},
                                    {16, 4, 2, 2, 0},
                                    {32, 2, 1, 3, 0},
                                    {32, 4, 4, 3, 0},
                                    {64, 2, 8, 3, 0},
                                    {64, 4, 1, 3, 0},
                                    {64, 2, 1, 6, 4},
                                    {64, 2, 1, 3, 1},
                                    {128, 2, 2, 4, 0},
                                    {128, 2, 1, 3, 2}}) {
    for (LinearEpilogue epilogue :
         {LinearEpilogue::kStore, LinearEpilogue::kAdd, LinearEpilogue::kSiluMul}) {
      Check({232, 1088}, 75, epilogue, false, 132, nullptr, &g);
    }
  }
}

// The same with the tokens in every block, which takes several times 64 rows.
TEST_P(LinearKernels, HeadsOfResidentTokens) {
  const bool has_format = GetParam().bits > 0 || GetParam().store == Store::kBf16;
  if (!DeviceHasWgmma() || !has_format) GTEST_SKIP() << kNoWgmma;
  for (int tokens : {65, 100, 128}) {
    for (const Shape& shape : {Shape{1000, 192}, Shape{779, 768}}) {
      Check(shape, tokens, LinearEpilogue::kStore, false, /*multiprocessors=*/3, nullptr, nullptr,
            true);
    }
  }
}

// Routed experts, and one that every token takes in the same launch; chosen before, or by the
// launch of their gates.
TEST_P(LinearKernels, Experts) {
  constexpr int kExpertCount = 5;
  constexpr int kTopK = 3;
  constexpr int kHidden = 192;
  const bool quantized = GetParam().bits > 0;
  const int width = quantized ? 64 : 40;          // of a routed expert
  const int shared_width = quantized ? 128 : 72;  // of the shared one
  const Matrices gate_up(GetParam(), kExpertCount, 2 * width, kHidden, true, 3);
  const Matrices shared_gate_up(GetParam(), 1, 2 * shared_width, kHidden, true, 4);
  const Matrices down(GetParam(), kExpertCount, kHidden, width, false, 5);
  const Matrices shared_down(GetParam(), 1, kHidden, shared_width, false, 6);
  const Matrices router(GetParam(), 1, kExpertCount, kHidden, false, 7);
  const std::vector<float> router_bias{0.25f, -1.5f, 2.0f, 0.75f, -0.5f};
  const DeviceArray<float> device_router_bias(router_bias);
  for (const auto& [tokens, routes] :
       {std::pair(1, false), std::pair(2, false), std::pair(1, true)}) {
    Numbers numbers(9);
    const std::vector<float> input = numbers.Vector(static_cast<size_t>(tokens) * kHidden, 1.5f);
    std::vector<float> routing;
    for (int token = 0; token < tokens; ++token) {
      for (float weight : {0.5f, 0.3f, 0.2f}) routing.push_back(weight);
      for (int j = 0; j < kTopK; ++j) {
        routing.push_back(static_cast<float>((4 + token + 3 * j) % kExpertCount));
      }
    }
    const DeviceArray<float> device_routing(routing);
    if (routes) routing = Chosen(router, router_bias, input, kTopK);
    const std::vector<float> residual = numbers.Vector(static_cast<size_t>(tokens) * kHidden);
    const DeviceArray<float> device_input(input);
    const DeviceArray<float> activated(
        std::vector<float>(static_cast<size_t>(tokens * kTopK * width), NAN));
    const DeviceArray<float> shared_activated(
        std::vector<float>(static_cast<size_t>(tokens * shared_width), NAN));
    const DeviceArray<float> output(residual);

    ExpertParams p;
    p.linear.matrix = gate_up.view;
    p.linear.input = device_input.data();
    p.linear.input_stride = kHidden;
    p.linear.tokens = tokens;
    p.linear.epilogue = LinearEpilogue::kSiluMul;
    p.linear.output = activated.data();
    p.linear.output_stride = kTopK * width;
    p.routing = device_routing.data();
    p.routing_stride = 2 * kTopK;
    p.top_k = kTopK;
    ASSERT_TRUE(CanShareLaunch(Experts::kGateUp, gate_up.view, shared_gate_up.view));
    p.shared = shared_gate_up.view;
    p.shared_output = shared_activated.data();
    p.shared_output_stride = shared_width;
    ASSERT_TRUE(CanRoute(gate_up.view, router.view, 1));
    if (routes) {
      p.router = router.view;
      p.router_bias = device_router_bias.data();
      p.chosen = device_routing.data();
    }
    const Stream stream;
    LaunchExpertGateUp(p, OnDevice(false), stream.get());
    p.linear.matrix = down.view;
    p.linear.input = activated.data();
    p.linear.input_stride = kTopK * width;
    p.linear.epilogue = LinearEpilogue::kAdd;
    p.linear.scale = 0.5f;
    p.linear.output = output.data();
    p.linear.output_stride = kHidden;
    ASSERT_TRUE(CanShareLaunch(Experts::kDown, down.view, shared_down.view));
    p.shared = shared_down.view;
    p.shared_input = shared_activated.data();
    p.shared_input_stride = shared_width;
    // With a gate of the shared expert where there are several tokens.
    const std::vector<float> gates = numbers.Vector(static_cast<size_t>(3 * tokens), 2);
    const DeviceArray<float> device_gates(gates);
    if (tokens > 1) p.shared_gate = device_gates.data();
    p.shared_gate_stride = 3;
    LaunchExpertDown(p, OnDevice(false), stream.get());
    stream.Synchronize();
    const std::vector<float> found = output.Download();
    const std::vector<float> chosen = device_routing.Download();
    for (size_t i = 0; i < chosen.size(); ++i) EXPECT_NEAR(chosen[i], routing[i], 1e-3) << i;

    std::vector<double> expected(residual.begin(), residual.end());
    for (int token = 0; token < tokens; ++token) {
      const float* x = input.data() + token * kHidden;
      const auto add = [&](const Matrices& up, const Matrices& back, int matrix, int size,
                           double weight) {
        for (int i = 0; i < size; ++i) {
          double gate = 0;
          double value = 0;
          for (int col = 0; col < kHidden; ++col) {
            gate += up.at(matrix, i, col) * x[col];
            value += up.at(matrix, size + i, col) * x[col];
          }
          for (int row = 0; row < kHidden; ++row) {
            expected[static_cast<size_t>(token * kHidden + row)] +=
                0.5 * weight * back.at(matrix, row, i) * Silu(gate) * value;
          }
        }
      };
      for (int j = 0; j < kTopK; ++j) {
        const float* choice = routing.data() + token * 2 * kTopK;
        add(gate_up, down, static_cast<int>(choice[kTopK + j]), width, choice[j]);
      }
      const double gate = gates[static_cast<size_t>(3 * token)];
      add(shared_gate_up, shared_down, 0, shared_width, tokens > 1 ? 1 / (1 + std::exp(-gate)) : 1);
      EXPECT_LT(test::RelativeError(found, expected, static_cast<size_t>(token) * kHidden, kHidden),
                5e-4)
          << "token " << token << " of " << tokens;
    }
  }
}

TEST_P(LinearKernels, HeadsAreMatricesOfTheirOwn) {
  constexpr int kHeads = 3;
  constexpr int kCols = 128;
  constexpr int kRows = 40;
  constexpr int kStep = kCols + 6;
  constexpr int kStride = kHeads * kStep + 2;
  const Matrices matrices(GetParam(), kHeads, kRows, kCols, false, 13);
  for (const int tokens : {1, 7}) {
    const std::vector<float> input =
        Numbers(14).Vector(static_cast<size_t>(tokens * kStride), 1.5f);
    std::vector<double> expected;
    for (int i = 0; i < tokens * kHeads * kRows; ++i) {
      const int head = i / kRows % kHeads;
      const float* x = input.data() + i / (kHeads * kRows) * kStride + head * kStep;
      double sum = 0;
      for (int col = 0; col < kCols; ++col) sum += matrices.at(head, i % kRows, col) * x[col];
      expected.push_back(sum);
    }
    const DeviceArray<float> device_input(input);
    const DeviceArray<float> output(std::vector<float>(expected.size(), NAN));
    LinearParams p;
    p.matrix = matrices.view;
    p.input = device_input.data();
    p.input_stride = kStride;
    p.tokens = tokens;
    p.output = output.data();
    p.output_stride = kHeads * kRows;
    const Stream stream;
    LaunchHeadsLinear(p, kHeads, kStep, stream.get());
    stream.Synchronize();
    EXPECT_LT(test::RelativeError(output.Download(), expected, 0, expected.size()), 1e-5)
        << tokens << " tokens";
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, LinearKernels, testing::ValuesIn(test::kFormats),
                         [](const testing::TestParamInfo<Format>& format) {
                           return std::string("weights_") + format.param.name;
                         });

class RouterKernel : public test::KernelTest {};

// Experts that one block ranks, and more than one block does; equal scores, and not a number.
TEST_F(RouterKernel, ChoosesTheLargestAndTheFirstOfEquals) {
  for (int experts : {8, 64, 100, 300}) {
    constexpr int kCols = 64;
    constexpr int kTopK = 4;
    const Matrices matrices({"f32", 0, 0, Store::kF32}, 1, experts, kCols, false, 21);
    Numbers numbers(5);
    std::vector<float> input = numbers.Vector(kCols);
    std::vector<float> bias(static_cast<size_t>(experts));
    std::vector<double> scores;
    for (int e = 0; e < experts; ++e) {
      double sum = 0;
      for (int col = 0; col < kCols; ++col) {
        sum += matrices.at(0, e, col) * input[static_cast<size_t>(col)];
      }
      scores.push_back(sum);
    }
    // Two that certainly lead, equal as far as rounding goes is not asked of sums: biases decide.
    bias[5] = 100;
    bias[2] = 90;
    for (int e = 0; e < experts; ++e)
      scores[static_cast<size_t>(e)] += bias[static_cast<size_t>(e)];
    const DeviceArray<float> device_input(input);
    const DeviceArray<float> device_bias(bias);
    const DeviceArray<float> output(std::vector<float>(2 * kTopK, NAN));
    const DeviceArray<float> scratch(std::vector<float>(static_cast<size_t>(experts), 0));
    const DeviceArray<unsigned> arrivals(std::vector<unsigned>(1, 0));
    LinearParams p;
    p.matrix = matrices.view;
    p.input = device_input.data();
    p.input_stride = kCols;
    p.tokens = 1;
    p.bias = device_bias.data();
    p.epilogue = LinearEpilogue::kRouter;
    p.output = output.data();
    p.output_stride = 2 * kTopK;
    p.top_k = kTopK;
    p.scores = scratch.data();
    p.arrivals = arrivals.data();
    const Stream stream;
    LaunchLinear(p, OnDevice(false), stream.get());
    stream.Synchronize();
    const std::vector<float> found = output.Download();
    std::vector<int> order(static_cast<size_t>(experts));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)];
    });
    double sum = 0;
    for (int j = 0; j < kTopK; ++j) {
      sum += std::exp(scores[static_cast<size_t>(order[static_cast<size_t>(j)])] -
                      scores[static_cast<size_t>(order[0])]);
    }
    for (int j = 0; j < kTopK; ++j) {
      const auto index = static_cast<size_t>(j);
      const auto chosen = static_cast<size_t>(order[index]);
      EXPECT_EQ(found[kTopK + index], static_cast<float>(order[index])) << experts << " experts";
      EXPECT_NEAR(found[index],
                  std::exp(scores[chosen] - scores[static_cast<size_t>(order[0])]) / sum, 1e-3);
    }
    EXPECT_EQ(arrivals.Download()[0], 0u);
  }
}

}  // namespace
}  // namespace adder::cuda
