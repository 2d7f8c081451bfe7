// Several matrices in one launch, with a token shift and without, against sums in double, for every
// weight format. Runs where there is a CUDA device.
#include "cuda/kernels/several_linear.h"

#include <gtest/gtest.h>

#include <memory>

#include "cuda/kernels/activated_for_test.h"
#include "cuda/kernels/matrices_for_test.h"

namespace adder::cuda::test {
namespace {

struct OfMatrix {
  int rows;
  int cols;
  bool has_bias;
  bool activates;
  Activation activation;
};

// The matrices of a launch with their biases and outputs on the device.
class Several {
 public:
  Several(const Format& format, const std::vector<OfMatrix>& shapes, int tokens)
      : shapes_(shapes), tokens_(tokens) {
    for (size_t i = 0; i < shapes.size(); ++i) {
      const OfMatrix& shape = shapes[i];
      matrices.push_back(
          std::make_unique<Matrices>(format, 1, shape.rows, shape.cols, false, 40 + i));
      biases_.push_back(Numbers(50 + i).Vector(static_cast<size_t>(shape.rows), 0.7f, 0.3f));
      device_biases_.emplace_back(biases_.back());
      outputs.emplace_back(static_cast<size_t>(tokens * OutputStride(i)));
      OneOfSeveral& one = params.matrices[params.count++];
      one.matrix = matrices.back()->view;
      if (shape.has_bias) one.bias = device_biases_.back().data();
      one.activates = shape.activates;
      one.activation = shape.activation;
      one.output = outputs.back().data();
      one.output_stride = OutputStride(i);
    }
    params.tokens = tokens;
  }

  int OutputStride(size_t i) const { return shapes_[i].rows + 4; }

  // x(matrix, token) is what the matrix reads.
  template <class Input>
  void Check(Input x, double tolerance) const {
    for (size_t i = 0; i < shapes_.size(); ++i) {
      const OfMatrix& shape = shapes_[i];
      const std::vector<float> found = outputs[i].Download();
      for (int token = 0; token < tokens_; ++token) {
        const std::vector<double> input = x(i, token);
        std::vector<double> expected(found.size(), 0.0);
        const auto from = static_cast<size_t>(token * OutputStride(i));
        for (int row = 0; row < shape.rows; ++row) {
          double y = shape.has_bias ? biases_[i][static_cast<size_t>(row)] : 0.0;
          for (int col = 0; col < shape.cols; ++col) {
            y += matrices[i]->at(0, row, col) * input[static_cast<size_t>(col)];
          }
          expected[from + static_cast<size_t>(row)] =
              shape.activates ? Activated(shape.activation, y) : y;
        }
        EXPECT_LT(RelativeError(found, expected, from, static_cast<size_t>(shape.rows)), tolerance)
            << "matrix " << i << " token " << token;
        for (int row = shape.rows; row < OutputStride(i); ++row) {
          EXPECT_EQ(found[from + static_cast<size_t>(row)], 0.0f) << "behind the row";
        }
      }
    }
  }

  SeveralLinearParams params;
  std::vector<std::unique_ptr<Matrices>> matrices;
  std::vector<DeviceArray<float>> outputs;

 private:
  std::vector<OfMatrix> shapes_;
  int tokens_;
  std::vector<std::vector<float>> biases_;
  std::vector<DeviceArray<float>> device_biases_;
};

class SeveralLinear : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
  }

  // Quantised rows are of whole groups.
  static int Whole(int cols) { return GetParam().bits > 0 ? (cols + 63) / 64 * 64 : cols; }

  // Two steps of `tokens` sequences, the second of which finds what the first one left.
  static void CheckShift(int given_cols, int tokens, int multiprocessors = 132) {
    const int cols = Whole(given_cols);
    const std::vector<OfMatrix> shapes{{48, cols, false, false, Activation::kSilu},
                                       {20, cols, true, true, Activation::kTanh},
                                       {64, cols, false, true, Activation::kRelu2},
                                       {9, cols, true, true, Activation::kSigmoid}};
    constexpr int kOffset = 3;  // on no boundary
    const int stride = cols + 4;
    const int slot_floats = kOffset + cols + 2;
    Several several(GetParam(), shapes, tokens);
    Numbers numbers(29);
    const auto width = static_cast<size_t>(cols);
    const std::vector<float> weight = numbers.Vector(width, 0.04f, 0.09f);
    const std::vector<float> bias = numbers.Vector(width, 0.03f, 0.01f);
    const std::vector<float> mix = numbers.Vector(shapes.size() * width, 0.5f, 0.5f);
    std::vector<float> slots =
        numbers.Vector(static_cast<size_t>((tokens + 1) * slot_floats), 0.1f);
    const DeviceArray<float> device_weight(weight), device_bias(bias), device_mix(mix),
        device_slots(slots);
    // Slots in another order than rows, and runs in another one too.
    std::vector<SequenceRun> runs;
    std::vector<int> row_runs(static_cast<size_t>(tokens));
    const auto slot_of = [&](int token) {
      return static_cast<size_t>((tokens - token) * slot_floats + kOffset);
    };
    for (int run = 0; run < tokens; ++run) {
      const int token = (run + 1) % tokens;
      runs.push_back({device_slots.data() + slot_of(token) - kOffset, nullptr, 7, token, 1, 0});
      row_runs[static_cast<size_t>(token)] = run;
    }
    const DeviceArray<SequenceRun> device_runs(runs);
    const DeviceArray<int> device_row_runs(row_runs);
    const DeviceArray<unsigned> arrivals(static_cast<size_t>(tokens));
    SeveralLinearParams& p = several.params;
    p.shifts = true;
    p.norm.used = p.norm.centered = true;
    p.norm.weight = device_weight.data();
    p.norm.bias = device_bias.data();
    p.norm.eps = 1e-3f;
    p.shift.state_offset = kOffset;
    p.shift.runs = device_runs.data();
    p.shift.run_count = p.shift.rows = tokens;
    p.shift.row_runs = device_row_runs.data();
    p.shift.input_stride = stride;
    p.arrivals = arrivals.data();
    for (size_t i = 0; i < shapes.size(); ++i) {
      p.matrices[i].mix = device_mix.data() + i * width;
    }
    const Stream stream;
    for (int step = 0; step < 2; ++step) {
      // Far from zero, so that a variance without the mean would show.
      const std::vector<float> input =
          numbers.Vector(static_cast<size_t>(tokens * stride), 0.8f, 5.0f);
      const DeviceArray<float> device_input(input);
      p.shift.input = device_input.data();
      LaunchSeveralLinear(p, OnDevice(false, multiprocessors), stream.get());
      stream.Synchronize();
      std::vector<std::vector<double>> normed;
      for (int token = 0; token < tokens; ++token) {
        const float* x = input.data() + token * stride;
        double mean = 0;
        double variance = 0;
        for (int c = 0; c < cols; ++c) mean += x[c] / static_cast<double>(cols);
        for (int c = 0; c < cols; ++c) variance += (x[c] - mean) * (x[c] - mean) / cols;
        normed.emplace_back();
        for (size_t c = 0; c < width; ++c) {
          normed.back().push_back((x[c] - mean) / std::sqrt(variance + 1e-3) * weight[c] + bias[c]);
        }
      }
      several.Check(
          [&](size_t i, int token) {
            const std::vector<double>& y = normed[static_cast<size_t>(token)];
            std::vector<double> mixed(width);
            for (size_t c = 0; c < width; ++c) {
              mixed[c] = y[c] + mix[i * width + c] * (slots[slot_of(token) + c] - y[c]);
            }
            return mixed;
          },
          2e-4);
      const std::vector<float> after = device_slots.Download();
      for (int token = 0; token < tokens; ++token) {
        for (size_t c = 0; c < width; ++c) {
          slots[slot_of(token) + c] = static_cast<float>(normed[static_cast<size_t>(token)][c]);
        }
      }
      for (size_t i = 0; i < slots.size(); ++i) ASSERT_NEAR(after[i], slots[i], 2e-5) << i;
      slots = after;
      for (const unsigned arrived : arrivals.Download()) EXPECT_EQ(arrived, 0u);
    }
  }
};

TEST_P(SeveralLinear, OfAShift) {
  CheckShift(768, 1);
  CheckShift(64, 3);
  CheckShift(320, 8);
  CheckShift(100, 2);
}

TEST_P(SeveralLinear, OfAShiftOfLongRows) {
  CheckShift(2048, 1);
  CheckShift(2624, 2);
}

TEST_P(SeveralLinear, OfAShiftOnFewMultiprocessors) { CheckShift(768, 2, 3); }

TEST_P(SeveralLinear, OfRowsOfTheirOwn) {
  for (const int tokens : {1, 3}) {
    const std::vector<OfMatrix> shapes{{200, Whole(64), true, false, Activation::kSilu},
                                       {200, Whole(32), true, true, Activation::kSigmoid},
                                       {16, Whole(352), false, false, Activation::kSilu},
                                       {40, Whole(12), false, true, Activation::kTanh}};
    Several several(GetParam(), shapes, tokens);
    Numbers numbers(31);
    std::vector<std::vector<float>> inputs;
    std::vector<DeviceArray<float>> device_inputs;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const int stride = shapes[i].cols + 4 * static_cast<int>(i);
      inputs.push_back(numbers.Vector(static_cast<size_t>(tokens * stride), 0.2f, 0.03f));
      device_inputs.emplace_back(inputs.back());
      several.params.matrices[i].input = device_inputs.back().data();
      several.params.matrices[i].input_stride = stride;
    }
    const Stream stream;
    LaunchSeveralLinear(several.params, OnDevice(false), stream.get());
    stream.Synchronize();
    several.Check(
        [&](size_t i, int token) {
          const auto from = inputs[i].begin() + token * several.params.matrices[i].input_stride;
          return std::vector<double>(from, from + shapes[i].cols);
        },
        2e-4);
  }
}

TEST_P(SeveralLinear, KnowsWhatItTakes) {
  const Matrices wide(GetParam(), 1, 32, 128, false, 1);
  const Matrices narrow(GetParam(), 1, 32, 64, false, 2);
  PackedMatrix odd = narrow.view;
  odd.cols = 62;
  const Matrices gated(GetParam(), 1, 32, 128, true, 4);
  const LinearShape shape = OnDevice(false);
  EXPECT_TRUE(CanLaunchTogether(wide.view, wide.view, true, shape));
  EXPECT_FALSE(CanLaunchTogether(wide.view, narrow.view, true, shape));
  EXPECT_TRUE(CanLaunchTogether(wide.view, narrow.view, false, shape));
  EXPECT_FALSE(CanLaunchTogether(wide.view, odd, false, shape));
  EXPECT_FALSE(CanLaunchTogether(wide.view, gated.view, true, shape));
  EXPECT_FALSE(CanLaunchTogether(wide.view, wide.view, true, OnDevice(true)));
  PackedMatrix other = wide.view;
  other.format = wide.view.format == WeightFormat::kQ8 ? WeightFormat::kQ4 : WeightFormat::kQ8;
  EXPECT_FALSE(CanLaunchTogether(wide.view, other, true, shape));
}

INSTANTIATE_TEST_SUITE_P(Formats, SeveralLinear, testing::ValuesIn(kFormats),
                         [](const auto& of) { return std::string(of.param.name); });

}  // namespace
}  // namespace adder::cuda::test
