// The kernels of the gated delta rule against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/gated_delta.h"

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>

#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/device_data_for_test.h"

namespace adder::cuda {
namespace {

struct Sizes {
  int key_heads;
  int value_heads;
  int key_dim;
  int value_dim;
  int d_conv;
  bool bias;
  bool per_channel;
};
std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << s.key_heads << " / " << s.value_heads << " heads, " << s.key_dim << " x "
             << s.value_dim << ", " << s.d_conv << " taps" << (s.bias ? ", bias" : "")
             << (s.per_channel ? ", decay per channel" : "");
}

// Slots in another order than sequences, and sequences at different phases of the ring.
constexpr int kSlots[] = {2, 0, 3};
constexpr int kPositions[] = {0, 5, 1003};
constexpr int kSequences = 3;
constexpr int kTokens = 19;  // longer than what the scan loads at a time

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class GatedDeltaKernels : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    const Sizes& s = GetParam();
    p_.key_heads = s.key_heads;
    p_.value_heads = s.value_heads;
    p_.key_dim = s.key_dim;
    p_.value_dim = s.value_dim;
    p_.decay_per_channel = s.per_channel;
    p_.gate_sigmoid = s.per_channel;
    p_.qk_eps = 1e-3f;
    p_.query_scale = 0.37f;
    p_.beta_scale = s.bias ? 2.0f : 1.0f;
    p_.norm_eps = 2e-2f;
    p_.d_conv = s.d_conv;
    channels_ = p_.conv_channels();
    decays_ = s.value_heads * (s.per_channel ? s.key_dim : 1);
    values_ = s.value_heads * s.value_dim;
    // q | k | v | beta | decay | gate.
    width_ = (channels_ + s.value_heads + decays_ + values_ + 3) / 4 * 4;
    output_stride_ = values_ + 4;
    p_.conv_offset = 64;
    p_.state_offset = 64 + (s.d_conv * channels_ + 63) / 64 * 64;
    slot_floats_ =
        static_cast<size_t>(p_.state_offset) + static_cast<size_t>(values_ * s.key_dim + 64);
    conv_weight_ = RandomFloats(1, static_cast<size_t>(s.d_conv * channels_));
    conv_bias_ = RandomFloats(2, static_cast<size_t>(channels_));
    dt_bias_ = RandomFloats(3, static_cast<size_t>(decays_), -2, 1);
    a_ = RandomFloats(4, static_cast<size_t>(s.value_heads), -2, -0.05f);
    norm_ = RandomFloats(5, static_cast<size_t>(s.value_dim), 0.3f, 1.7f);
    slots_ = RandomFloats(6, slot_floats_ * 4);
    projected_ = RandomFloats(7, static_cast<size_t>(kSequences * kTokens * width_), -2, 3);
  }

  // Token `token` of sequence `sequence` lies in this row.
  static int RowOf(int sequence, int token) { return sequence * kTokens + token; }

  // The row after convolution and SiLU; moves the ring on.
  std::vector<double> Convolved(const float* row, int position, float* ring) const {
    const Sizes& s = GetParam();
    std::vector<double> convolved;
    for (int c = 0; c < channels_; ++c) {
      double sum = s.bias ? conv_bias_[static_cast<size_t>(c)] : 0;
      for (int tap = 0; tap < s.d_conv; ++tap) {
        const float input =
            tap + 1 == s.d_conv ? row[c] : ring[(position + 1 + tap) % s.d_conv * channels_ + c];
        sum += static_cast<double>(conv_weight_[static_cast<size_t>(tap * channels_ + c)]) * input;
      }
      convolved.push_back(sum * Sigmoid(sum));
    }
    for (int c = 0; c < channels_ && s.d_conv > 1; ++c) {
      ring[position % s.d_conv * channels_ + c] = row[c];
    }
    return convolved;
  }

  // One head of one token; `state` [key_dim, value_dim] in double.
  void StepHead(int head, const float* row, const std::vector<double>& convolved,
                std::vector<double>& state, double* out) const {
    const auto rows = static_cast<size_t>(p_.key_dim);
    const auto columns = static_cast<size_t>(p_.value_dim);
    const auto key = static_cast<size_t>(head / (p_.value_heads / p_.key_heads) * p_.key_dim);
    const double* q = convolved.data() + key;
    const double* k = q + p_.keys();
    const double* v = convolved.data() + 2 * p_.keys() + head * p_.value_dim;
    double q_squares = p_.qk_eps;
    double k_squares = p_.qk_eps;
    for (size_t n = 0; n < rows; ++n) q_squares += q[n] * q[n], k_squares += k[n] * k[n];
    const double beta = p_.beta_scale * Sigmoid(row[channels_ + head]);
    const float* decays = row + channels_ + p_.value_heads;
    for (size_t n = 0; n < rows; ++n) {
      const auto at = static_cast<size_t>(head) * (p_.decay_per_channel ? rows : 1) +
                      (p_.decay_per_channel ? n : 0);
      const double step = std::log1p(std::exp(static_cast<double>(decays[at]) + dt_bias_[at]));
      for (size_t c = 0; c < columns; ++c) {
        state[n * columns + c] *= std::exp(a_[static_cast<size_t>(head)] * step);
      }
    }
    double squares = 0;
    for (size_t c = 0; c < columns; ++c) {
      double found = 0;
      for (size_t n = 0; n < rows; ++n) {
        found += k[n] / std::sqrt(k_squares) * state[n * columns + c];
      }
      out[c] = 0;
      for (size_t n = 0; n < rows; ++n) {
        state[n * columns + c] += k[n] / std::sqrt(k_squares) * beta * (v[c] - found);
        out[c] += p_.query_scale * q[n] / std::sqrt(q_squares) * state[n * columns + c];
      }
      squares += out[c] * out[c];
    }
    const float* gates = decays + decays_ + head * p_.value_dim;
    for (size_t c = 0; c < columns; ++c) {
      const double gate = Sigmoid(gates[c]) * (p_.gate_sigmoid ? 1 : gates[c]);
      out[c] *= norm_[c] / std::sqrt(squares / static_cast<double>(columns) + p_.norm_eps) * gate;
    }
  }

  // Output rows of the reference, which changes `slots`.
  std::vector<double> Reference(std::vector<float>& slots) const {
    std::vector<double> output(static_cast<size_t>(kSequences * kTokens * output_stride_));
    const auto head_floats = static_cast<std::ptrdiff_t>(p_.key_dim * p_.value_dim);
    for (int sequence = 0; sequence < kSequences; ++sequence) {
      float* slot = slots.data() + static_cast<size_t>(kSlots[sequence]) * slot_floats_;
      for (int head = 0; head < p_.value_heads; ++head) {
        // Convolved anew for every head; the last one's ring stays.
        std::vector<float> ring(slot + p_.conv_offset,
                                slot + p_.conv_offset + p_.d_conv * channels_);
        float* kept = slot + p_.state_offset + head * head_floats;
        std::vector<double> state(kept, kept + head_floats);
        for (int token = 0; token < kTokens; ++token) {
          const float* row = projected_.data() + RowOf(sequence, token) * width_;
          StepHead(head, row, Convolved(row, kPositions[sequence] + token, ring.data()), state,
                   output.data() + RowOf(sequence, token) * output_stride_ + head * p_.value_dim);
        }
        std::copy(state.begin(), state.end(), kept);
        if (head + 1 == p_.value_heads) std::copy(ring.begin(), ring.end(), slot + p_.conv_offset);
      }
    }
    return output;
  }

  struct Result {
    std::vector<float> output;
    std::vector<uint16_t> rounded;
    std::vector<float> slots;
  };
  // launch(params, tokens, stream) puts kernels on the stream for `tokens` tokens of each sequence.
  template <class Launch>
  Result Run(int tokens_at_a_time, Launch launch) const {
    const DeviceArray<float> conv_weight(conv_weight_), conv_bias(conv_bias_), dt_bias(dt_bias_),
        a(a_), norm(norm_), slots(slots_), projected(projected_);
    const auto floats = static_cast<size_t>(kSequences * kTokens * output_stride_);
    const DeviceArray<float> output(floats);
    const DeviceArray<uint16_t> rounded(floats);
    const Stream stream;
    GatedDeltaParams p = p_;
    p.conv_weight = conv_weight.data();
    p.conv_bias = GetParam().bias ? conv_bias.data() : nullptr;
    p.dt_bias = dt_bias.data();
    p.a = a.data();
    p.norm_weight = norm.data();
    p.run_count = kSequences;
    p.rows = kSequences * kTokens;
    p.qkv = projected.data();
    p.beta = p.qkv + channels_;
    p.decay = p.beta + p.value_heads;
    p.gate = p.decay + decays_;
    p.qkv_stride = p.beta_stride = p.decay_stride = p.gate_stride = width_;
    p.output = output.data();
    p.rounded_output = rounded.data();
    p.output_stride = p.rounded_output_stride = output_stride_;
    for (int begin = 0; begin < kTokens; begin += tokens_at_a_time) {
      const int tokens = std::min(tokens_at_a_time, kTokens - begin);
      std::vector<SequenceRun> runs;
      for (int i = 0; i < kSequences; ++i) {
        runs.push_back({slots.data() + static_cast<size_t>(kSlots[i]) * slot_floats_, nullptr,
                        kPositions[i] + begin, RowOf(i, begin), tokens, 0});
      }
      const DeviceArray<SequenceRun> device_runs(runs);
      p.runs = device_runs.data();
      launch(p, tokens, stream.get());
      stream.Synchronize();
    }
    return {output.Download(), rounded.Download(), slots.Download()};
  }

  Result Steps(bool exact = true, bool whole_heads = false) const {
    return Run(1, [=](GatedDeltaParams p, int, cudaStream_t stream) {
      p.exact = exact;
      p.whole_heads = whole_heads;
      LaunchGatedDeltaStep(p, stream);
    });
  }
  Result Scan() const {
    const DeviceArray<float> convolved(static_cast<size_t>(kSequences * kTokens * channels_));
    return Run(kTokens, [&](GatedDeltaParams p, int tokens, cudaStream_t stream) {
      CausalConvParams conv;
      conv.channels = channels_;
      conv.d_conv = p.d_conv;
      conv.weight = p.conv_weight;
      conv.bias = p.conv_bias;
      conv.conv_offset = p.conv_offset;
      conv.silu = true;
      conv.runs = p.runs;
      conv.run_count = p.run_count;
      conv.input = p.qkv;
      conv.input_stride = p.qkv_stride;
      conv.output = convolved.data();
      conv.output_stride = channels_;
      LaunchCausalConv(conv, tokens, stream);
      p.qkv = convolved.data();
      p.qkv_stride = channels_;
      LaunchGatedDeltaScan(p, stream);
    });
  }

  GatedDeltaParams p_;
  int channels_ = 0;
  int decays_ = 0;
  int values_ = 0;
  int width_ = 0;
  int output_stride_ = 0;
  size_t slot_floats_ = 0;
  std::vector<float> conv_weight_, conv_bias_, dt_bias_, a_, norm_, slots_, projected_;
};

TEST_P(GatedDeltaKernels, StepsMatchTheReference) {
  std::vector<float> expected_slots = slots_;
  const std::vector<double> expected = Reference(expected_slots);
  double largest = 0;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (const bool exact : {true, false}) {
    const Result found = Steps(exact);
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool is_output = i % static_cast<size_t>(output_stride_) < static_cast<size_t>(values_);
      ASSERT_NEAR(found.output[i], expected[i], is_output ? (exact ? 3e-6 : 1e-5) * largest : 0)
          << "row " << i / static_cast<size_t>(output_stride_) << " channel "
          << i % static_cast<size_t>(output_stride_);
      ASSERT_EQ(found.rounded[i], __bfloat16_as_ushort(__float2bfloat16_rn(found.output[i])));
    }
    // The whole of every slot: rings exactly, nothing else touched.
    for (size_t i = 0; i < expected_slots.size(); ++i) {
      const bool is_state = i % slot_floats_ >= static_cast<size_t>(p_.state_offset);
      ASSERT_NEAR(found.slots[i], expected_slots[i], is_state ? (exact ? 3e-6 : 1e-5) : 0)
          << "slot " << i / slot_floats_ << " float " << i % slot_floats_;
    }
  }
}

TEST_P(GatedDeltaKernels, WholeHeadsChangeNothing) {
  const Result expected = Steps();
  const Result found = Steps(true, true);
  EXPECT_EQ(found.output, expected.output);
  EXPECT_EQ(found.rounded, expected.rounded);
  EXPECT_EQ(found.slots, expected.slots);
}

TEST_P(GatedDeltaKernels, ScanIsBitwiseTheSameAsSteps) {
  const Result steps = Steps();
  const Result scan = Scan();
  EXPECT_EQ(scan.output, steps.output);
  EXPECT_EQ(scan.rounded, steps.rounded);
  EXPECT_EQ(scan.slots, steps.slots);
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, GatedDeltaKernels,
    testing::Values(Sizes{2, 4, 128, 128, 4, false, false}, Sizes{2, 2, 128, 128, 4, false, true},
                    Sizes{3, 3, 96, 192, 4, true, false}, Sizes{2, 6, 96, 32, 4, false, true},
                    Sizes{2, 4, 16, 16, 4, false, false}, Sizes{4, 4, 12, 24, 4, true, false},
                    Sizes{1, 3, 5, 4, 1, false, true}, Sizes{1, 2, 200, 100, 3, true, true},
                    Sizes{1, 2, 256, 256, 8, false, false}));

}  // namespace
}  // namespace adder::cuda
