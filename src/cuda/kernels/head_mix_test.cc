// The mixing of heads against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/head_mix.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/kernels/ragged_runs_for_test.h"

namespace adder::cuda::test {
namespace {

struct Sizes {
  int heads;
  int kv_heads;
  int head_dim;
  int taps;
  int group_taps;
};

class HeadMixKernels : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    const Sizes& s = GetParam();
    channels_ = (s.heads + s.kv_heads) * s.head_dim;
    half_ = s.kv_heads * s.head_dim / 2;
    stride_ = channels_ + 2 * half_ + 3;
    ring_rows_ = s.taps + s.group_taps - 1;
    value_offset_ = kOffset + ring_rows_ * channels_ + 7;
    Numbers numbers(21);
    const auto channels = static_cast<size_t>(channels_);
    conv_weight_ = numbers.Vector(channels * static_cast<size_t>(s.taps));
    conv_bias_ = numbers.Vector(channels);
    group_weight_ = numbers.Vector(channels * static_cast<size_t>(s.group_taps * s.head_dim), 0.4f);
    group_bias_ = numbers.Vector(channels);
    input_ = numbers.Vector(static_cast<size_t>(kRaggedRows * stride_));
    slots_ = numbers.Vector(static_cast<size_t>(4 * (value_offset_ + half_ + 5)));
  }

  RaggedResult Run(int at_a_time) const {
    const DeviceArray<float> conv_weight(conv_weight_), conv_bias(conv_bias_),
        group_weight(group_weight_), group_bias(group_bias_);
    return RunRagged({input_}, stride_, slots_, at_a_time,
                     [&](const RaggedBatch& batch, const std::vector<const float*>& inputs,
                         float* output, cudaStream_t stream) {
                       const Sizes& s = GetParam();
                       HeadMixParams p;
                       p.heads = s.heads;
                       p.kv_heads = s.kv_heads;
                       p.head_dim = s.head_dim;
                       p.taps = s.taps;
                       p.group_taps = s.group_taps;
                       p.conv_weight = conv_weight.data();
                       p.conv_bias = conv_bias.data();
                       p.group_weight = group_weight.data();
                       p.group_bias = group_bias.data();
                       p.conv_offset = kOffset;
                       p.value_offset = value_offset_;
                       p.runs = batch.runs;
                       p.run_count = batch.run_count;
                       p.rows = batch.rows;
                       p.row_runs = batch.row_runs;
                       p.input = inputs[0];
                       p.output = output;
                       p.stride = stride_;
                       LaunchHeadMix(p, batch.most_tokens, stream);
                     });
  }

  static constexpr int kOffset = 64;
  int channels_ = 0;
  int half_ = 0;
  int stride_ = 0;
  int ring_rows_ = 0;
  int value_offset_ = 0;
  std::vector<float> conv_weight_, conv_bias_, group_weight_, group_bias_, input_, slots_;
};

TEST_P(HeadMixKernels, StepsMatchTheReference) {
  const Sizes& s = GetParam();
  const RaggedResult found = Run(1);
  std::vector<float> slots = slots_;
  const int slot_floats = static_cast<int>(slots.size()) / 4;
  const int group = s.heads / s.kv_heads;
  const int q_width = s.heads * s.head_dim;
  for (int sequence = 0; sequence < kRaggedSequences; ++sequence) {
    float* slot = slots.data() + kRaggedSlots[sequence] * slot_floats;
    float* ring = slot + kOffset;
    float* delayed = slot + value_offset_;
    for (int token = 0; token < kRaggedTokens[sequence]; ++token) {
      const int position = kRaggedPositions[sequence] + token;
      const float* in = input_.data() + RaggedRow(sequence, token) * stride_;
      const float* out = found.output.data() + RaggedRow(sequence, token) * stride_;
      const auto past = [&](int age, int c) {
        if (age == 0) return in[c];
        const int row = (position - age + ring_rows_) % ring_rows_;
        return ring[row * channels_ + c];
      };
      const auto convolved = [&](int c, int age) {
        double sum = conv_bias_[static_cast<size_t>(c)];
        for (int t = 0; t < s.taps; ++t) {
          sum += static_cast<double>(conv_weight_[static_cast<size_t>(t * channels_ + c)]) *
                 past(age + s.taps - 1 - t, c);
        }
        return sum;
      };
      const auto mean = [&](int head, int d) {
        return (in[head * s.head_dim + d] + in[q_width + head / group * s.head_dim + d]) / 2.0;
      };
      for (int c = 0; c < channels_; ++c) {
        const int head = c / s.head_dim;
        double sum = group_bias_[static_cast<size_t>(c)];
        for (int t = 0; t < s.group_taps; ++t) {
          for (int j = 0; j < s.head_dim; ++j) {
            sum += group_weight_[static_cast<size_t>((t * s.head_dim + j) * channels_ + c)] *
                   convolved(head * s.head_dim + j, s.group_taps - 1 - t);
          }
        }
        for (int h = 0; h < s.heads; ++h) {
          if (head < s.heads ? h == head : h / group == head - s.heads) {
            sum += mean(h, c % s.head_dim) / (head < s.heads ? 1 : group);
          }
        }
        ASSERT_NEAR(out[c], sum, 1e-5 * (2 + std::abs(sum)))
            << "sequence " << sequence << " token " << token << " channel " << c;
      }
      for (int i = 0; i < half_; ++i) {
        ASSERT_EQ(out[channels_ + i], in[channels_ + i]);
        ASSERT_EQ(out[channels_ + half_ + i], delayed[i]);
        delayed[i] = in[channels_ + half_ + i];
      }
      for (int c = 0; c < channels_ && ring_rows_ > 1; ++c) {
        ring[position % ring_rows_ * channels_ + c] = in[c];
      }
    }
  }
  EXPECT_EQ(found.slots, slots);
}

TEST_P(HeadMixKernels, RunsAreBitwiseTheSameAsSteps) {
  ExpectRunsAreSteps([&](int tokens) { return Run(tokens); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, HeadMixKernels,
                         testing::Values(Sizes{8, 2, 128, 2, 2}, Sizes{6, 2, 24, 4, 3},
                                         Sizes{4, 4, 16, 1, 1}, Sizes{3, 1, 40, 3, 1}));

}  // namespace
}  // namespace adder::cuda::test
