// RWKV-7's mixer and token shift against plain references. Runs where there is a CUDA device.
#include "cuda/kernels/rwkv7.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/kernels/ragged_runs_for_test.h"
#include "cuda/kernels/rwkv7_step_for_test.h"

namespace adder::cuda::test {
namespace {

struct Sizes {
  int heads;
  int head_dim;
  bool value_mix;
};

class Rwkv7Kernels : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    heads_ = GetParam().heads;
    dim_ = GetParam().head_dim;
    inner_ = heads_ * dim_;
    stride_ = inner_ + 4;
    Numbers numbers(13);
    const auto inner = static_cast<size_t>(inner_);
    for (std::vector<float>& vector : vectors_) vector = numbers.Vector(inner, 0.6f, 0.7f);
    for (int i = 0; i < 8; ++i) {
      inputs_.push_back(numbers.Vector(static_cast<size_t>(kRaggedRows * stride_), 1.2f));
    }
    slots_ = numbers.Vector(static_cast<size_t>(4 * (kOffset + inner_ * dim_ + 6)), 0.5f);
  }

  RaggedResult Run(int at_a_time) const {
    const Rwkv7DeviceVectors vectors(vectors_);
    return RunRagged(inputs_, stride_, slots_, at_a_time,
                     [&](const RaggedBatch& batch, const std::vector<const float*>& inputs,
                         float* output, cudaStream_t stream) {
                       Rwkv7Params p =
                           vectors.Params(heads_, dim_, kOffset, stride_, batch, inputs, output);
                       p.decay = inputs[3];
                       p.rate = inputs[4];
                       p.gate = inputs[5];
                       p.value_mix = GetParam().value_mix ? inputs[6] : nullptr;
                       LaunchRwkv7(p, stream);
                     });
  }

  static constexpr int kOffset = 64;
  int heads_ = 0;
  int dim_ = 0;
  int inner_ = 0;
  int stride_ = 0;
  std::vector<float> vectors_[5];  // key_scale, key_rate, bonus, the norm's weight and bias
  std::vector<std::vector<float>> inputs_;
  std::vector<float> slots_;
};

TEST_P(Rwkv7Kernels, StepsMatchTheReference) {
  const RaggedResult found = Run(1);
  const size_t slot_floats = slots_.size() / 4;
  const auto dim = static_cast<size_t>(dim_);
  for (int sequence = 0; sequence < kRaggedSequences; ++sequence) {
    for (int head = 0; head < heads_; ++head) {
      const size_t slot = static_cast<size_t>(kRaggedSlots[sequence]) * slot_floats + kOffset +
                          static_cast<size_t>(head) * dim * dim;
      std::vector<double> state(slots_.begin() + static_cast<std::ptrdiff_t>(slot),
                                slots_.begin() + static_cast<std::ptrdiff_t>(slot + dim * dim));
      for (int token = 0; token < kRaggedTokens[sequence]; ++token) {
        const int row = RaggedRow(sequence, token);
        const auto input = [&](int which, size_t i) {
          return static_cast<double>(inputs_[static_cast<size_t>(which)]
                                            [static_cast<size_t>(row * stride_ + head * dim_) + i]);
        };
        const auto vector = [&](int which, size_t i) {
          return static_cast<double>(vectors_[which][static_cast<size_t>(head * dim_) + i]);
        };
        const std::vector<double> expected =
            Rwkv7Step(dim, GetParam().value_mix, input, vector, state);
        for (size_t c = 0; c < dim; ++c) {
          const size_t at = static_cast<size_t>(row * stride_ + head * dim_) + c;
          ASSERT_NEAR(found.output[at], expected[c], 5e-5 * (1 + std::abs(expected[c])))
              << "sequence " << sequence << " token " << token << " head " << head << " dim " << c;
        }
      }
      for (size_t i = 0; i < state.size(); ++i) {
        ASSERT_NEAR(found.slots[slot + i], state[i], 2e-5 * (1 + std::abs(state[i])));
      }
    }
  }
}

TEST_P(Rwkv7Kernels, RunsAreBitwiseTheSameAsSteps) {
  ExpectRunsAreSteps([&](int tokens) { return Run(tokens); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Rwkv7Kernels,
                         testing::Values(Sizes{3, 64, true}, Sizes{2, 64, false},
                                         Sizes{3, 24, true}, Sizes{2, 96, true}));

class TokenShiftKernels : public KernelTest {
 protected:
  static constexpr int kOffset = 64;
  static constexpr int kWidth = 300;
  static constexpr int kParts = 3;
  static constexpr int kInputStride = kWidth + 1;
  static constexpr int kOutputStride = kParts * kWidth + 2;

  RaggedResult Run(int at_a_time) const {
    const DeviceArray<float> mix(mix_);
    return RunRagged({input_}, kOutputStride, slots_, at_a_time,
                     [&](const RaggedBatch& batch, const std::vector<const float*>& inputs,
                         float* output, cudaStream_t stream) {
                       TokenShiftParams p;
                       p.width = kWidth;
                       p.parts = kParts;
                       p.mix = mix.data();
                       p.state_offset = kOffset;
                       p.runs = batch.runs;
                       p.run_count = batch.run_count;
                       p.rows = batch.rows;
                       p.row_runs = batch.row_runs;
                       p.input = inputs[0];
                       p.input_stride = kInputStride;
                       p.output = output;
                       p.output_stride = kOutputStride;
                       LaunchTokenShift(p, batch.most_tokens, stream);
                     });
  }

  const std::vector<float> mix_ = Numbers(1).Vector(kParts * kWidth);
  const std::vector<float> input_ = Numbers(2).Vector(kRaggedRows * kInputStride);
  const std::vector<float> slots_ = Numbers(3).Vector(4 * (kOffset + kWidth + 3));
};

TEST_F(TokenShiftKernels, StepsMatchTheReference) {
  const RaggedResult found = Run(1);
  const size_t slot_floats = slots_.size() / 4;
  for (int sequence = 0; sequence < kRaggedSequences; ++sequence) {
    const float* previous =
        slots_.data() + static_cast<size_t>(kRaggedSlots[sequence]) * slot_floats + kOffset;
    for (int token = 0; token < kRaggedTokens[sequence]; ++token) {
      const int row = RaggedRow(sequence, token);
      const float* y = input_.data() + row * kInputStride;
      for (int i = 0; i < kParts * kWidth; ++i) {
        const int c = i % kWidth;
        ASSERT_NEAR(found.output[static_cast<size_t>(row * kOutputStride + i)],
                    y[c] + mix_[static_cast<size_t>(i)] * (previous[c] - y[c]), 1e-6)
            << "sequence " << sequence << " token " << token << " element " << i;
      }
      previous = y;
    }
    for (int c = 0; c < kWidth; ++c) {
      ASSERT_EQ(found.slots[static_cast<size_t>(kRaggedSlots[sequence]) * slot_floats + kOffset +
                            static_cast<size_t>(c)],
                previous[c]);
    }
  }
}

TEST_F(TokenShiftKernels, RunsAreBitwiseTheSameAsSteps) {
  ExpectRunsAreSteps([&](int tokens) { return Run(tokens); });
}

}  // namespace
}  // namespace adder::cuda::test
