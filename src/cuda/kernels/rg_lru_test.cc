// RG-LRU against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/rg_lru.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/kernels/ragged_runs_for_test.h"

namespace adder::cuda::test {
namespace {

struct Sizes {
  int heads;
  int block;
};

class RgLruKernels : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    block_ = GetParam().block;
    width_ = GetParam().heads * block_;
    Numbers numbers(5);
    const auto width = static_cast<size_t>(width_);
    input_weight_ = numbers.Vector(width * static_cast<size_t>(block_), 0.3f);
    recurrent_weight_ = numbers.Vector(width * static_cast<size_t>(block_), 0.3f);
    input_bias_ = numbers.Vector(width);
    recurrent_bias_ = numbers.Vector(width);
    decay_ = numbers.Vector(width, 1, -2);
    x_ = numbers.Vector(static_cast<size_t>(kRaggedRows * (width_ + 3)), 2);
    y_ = numbers.Vector(static_cast<size_t>(kRaggedRows * (2 * width_ + 1)), 2);
    slots_ = numbers.Vector(static_cast<size_t>(4 * (kOffset + width_ + 5)));
  }

  RaggedResult Run(int at_a_time) const {
    const DeviceArray<float> input_weight(input_weight_), recurrent_weight(recurrent_weight_),
        input_bias(input_bias_), recurrent_bias(recurrent_bias_), decay(decay_);
    const DeviceArray<float> gates(static_cast<size_t>(kRaggedRows * 2 * width_));
    return RunRagged({x_, y_}, width_ + 2, slots_, at_a_time,
                     [&](const RaggedBatch& batch, const std::vector<const float*>& inputs,
                         float* output, cudaStream_t stream) {
                       RgLruParams p;
                       p.width = width_;
                       p.block = block_;
                       p.decay_scale = 8;
                       p.input_weight = input_weight.data();
                       p.recurrent_weight = recurrent_weight.data();
                       p.input_bias = input_bias.data();
                       p.recurrent_bias = recurrent_bias.data();
                       p.decay = decay.data();
                       p.state_offset = kOffset;
                       p.runs = batch.runs;
                       p.run_count = batch.run_count;
                       p.rows = batch.rows;
                       p.row_runs = batch.row_runs;
                       p.x = inputs[0];
                       p.x_stride = width_ + 3;
                       p.y = inputs[1] + width_;
                       p.y_stride = 2 * width_ + 1;
                       p.gates = gates.data();
                       p.output = output;
                       p.output_stride = width_ + 2;
                       LaunchRgLru(p, batch.most_tokens, stream);
                     });
  }

  static constexpr int kOffset = 64;
  int width_ = 0;
  int block_ = 0;
  std::vector<float> input_weight_, recurrent_weight_, input_bias_, recurrent_bias_, decay_, x_, y_,
      slots_;
};

TEST_P(RgLruKernels, StepsMatchTheReference) {
  const RaggedResult found = Run(1);
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  const size_t slot_floats = slots_.size() / 4;
  for (int sequence = 0; sequence < kRaggedSequences; ++sequence) {
    const size_t slot = static_cast<size_t>(kRaggedSlots[sequence]) * slot_floats + kOffset;
    for (int c = 0; c < width_; ++c) {
      double h = slots_[slot + static_cast<size_t>(c)];
      const int first = c / block_ * block_;
      for (int token = 0; token < kRaggedTokens[sequence]; ++token) {
        const int row = RaggedRow(sequence, token);
        const float* x = x_.data() + row * (width_ + 3);
        double input = input_bias_[static_cast<size_t>(c)];
        double recurrent = recurrent_bias_[static_cast<size_t>(c)];
        for (int i = 0; i < block_; ++i) {
          const auto at = static_cast<size_t>((first + i) * block_ + c - first);
          input += static_cast<double>(x[first + i]) * input_weight_[at];
          recurrent += static_cast<double>(x[first + i]) * recurrent_weight_[at];
        }
        const double a = std::exp(-8 * sigmoid(recurrent) *
                                  std::log1p(std::exp(decay_[static_cast<size_t>(c)])));
        const double size = kRaggedPositions[sequence] + token == 0 ? 1 : std::sqrt(1 - a * a);
        h = a * h + size * sigmoid(input) * x[c];
        const double y = y_[static_cast<size_t>(row * (2 * width_ + 1) + width_ + c)];
        const double gelu =
            0.5 * y * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (y + 0.044715 * y * y * y)));
        ASSERT_NEAR(found.output[static_cast<size_t>(row * (width_ + 2) + c)], h * gelu, 2e-5)
            << "sequence " << sequence << " token " << token << " channel " << c;
      }
      ASSERT_NEAR(found.slots[slot + static_cast<size_t>(c)], h, 1e-5);
    }
  }
  // The slot that no sequence has is untouched.
  for (size_t i = slot_floats; i < 2 * slot_floats; ++i) ASSERT_EQ(found.slots[i], slots_[i]);
}

TEST_P(RgLruKernels, RunsAreBitwiseTheSameAsSteps) {
  ExpectRunsAreSteps([&](int tokens) { return Run(tokens); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, RgLruKernels,
                         testing::Values(Sizes{1, 256}, Sizes{3, 40}, Sizes{5, 12}));

}  // namespace
}  // namespace adder::cuda::test
