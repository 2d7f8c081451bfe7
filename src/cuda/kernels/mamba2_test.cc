// The Mamba-2 kernels against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/mamba2.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "cuda/kernels/device_data_for_test.h"
#include "cuda/kernels/mamba2_deferred.h"
#include "cuda/kernels/stored_states_for_test.h"

namespace adder::cuda {
namespace {

struct Sizes {
  int heads;
  int head_dim;
  int d_state;
  int groups;
  int d_conv;
  bool bias;
  bool gates = true;
  DType dtype = DType::kF32;
};
std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << s.heads << " heads of " << s.head_dim << ", state " << s.d_state << ", " << s.groups
             << " groups, " << s.d_conv << " taps" << (s.bias ? ", bias" : "")
             << (s.gates ? "" : ", no gate") << ", " << DTypeName(s.dtype);
}

// Slots in another order than sequences, and sequences at different phases of the ring.
constexpr int kSlots[] = {2, 0, 3};
constexpr int kPositions[] = {0, 5, 1003};
constexpr int kSequences = 3;
constexpr int kTokens = 19;  // longer than a chunk of the scan

class Mamba2Kernels : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    const Sizes& s = GetParam();
    p_.heads = s.heads;
    p_.head_dim = s.head_dim;
    p_.d_state = s.d_state;
    p_.groups = s.groups;
    p_.d_conv = s.d_conv;
    p_.gates = s.gates;
    p_.dt_min = 0.02f;
    p_.dt_max = 1.5f;
    channels_ = p_.conv_channels();
    width_ = (p_.inner() + channels_ + s.heads + 3) / 4 * 4;
    output_stride_ = (p_.inner() + 3) / 4 * 4;
    p_.conv_offset = 64;
    p_.ssm_offset = 64 + (s.d_conv * channels_ + 63) / 64 * 64;
    deferred_offset_ = p_.ssm_offset + s.heads * s.d_state * s.head_dim + 64;
    deferred_offset_ += -deferred_offset_ & 63;
    slot_floats_ = static_cast<size_t>(deferred_offset_) +
                   static_cast<size_t>(kDeferredTokens * DeferredRow(p_).floats);
    conv_weight_ = RandomFloats(1, static_cast<size_t>(s.d_conv * channels_));
    conv_bias_ = RandomFloats(2, static_cast<size_t>(channels_));
    dt_bias_ = RandomFloats(3, static_cast<size_t>(s.heads), -2, 1);
    a_ = RandomFloats(4, static_cast<size_t>(s.heads), -4, -0.1f);
    d_ = RandomFloats(5, static_cast<size_t>(s.heads));
    p_.ssm_dtype = s.dtype;
    states_ = {slot_floats_, static_cast<size_t>(p_.ssm_offset),
               static_cast<size_t>(s.heads * s.d_state * s.head_dim), s.dtype};
    slots_ = states_.Packed(RandomFloats(6, slot_floats_ * 4));
    projected_ = RandomFloats(7, static_cast<size_t>(kSequences * kTokens * width_), -3, 3);
  }

  // Token `token` of sequence `sequence` lies in this row.
  static int RowOf(int sequence, int token) { return sequence * kTokens + token; }

  // Output rows of the reference for `tokens` tokens from `begin` on, which changes `slots`, whose
  // states are f32.
  std::vector<double> Reference(std::vector<float>& slots, int begin = 0,
                                int tokens = kTokens) const {
    const Sizes& s = GetParam();
    std::vector<double> output(static_cast<size_t>(kSequences * kTokens * output_stride_));
    const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
    for (int sequence = 0; sequence < kSequences; ++sequence) {
      float* slot = slots.data() + static_cast<size_t>(kSlots[sequence]) * slot_floats_;
      float* ring = slot + p_.conv_offset;
      float* state = slot + p_.ssm_offset;
      for (int token = begin; token < begin + tokens; ++token) {
        const int position = kPositions[sequence] + token;
        const float* row = projected_.data() + RowOf(sequence, token) * width_;
        std::vector<double> convolved;
        for (int c = 0; c < channels_; ++c) {
          double sum = s.bias ? conv_bias_[static_cast<size_t>(c)] : 0;
          for (int tap = 0; tap < s.d_conv; ++tap) {
            const int from = position + 1 + tap;
            const float input =
                tap + 1 == s.d_conv ? row[p_.inner() + c] : ring[from % s.d_conv * channels_ + c];
            sum +=
                static_cast<double>(conv_weight_[static_cast<size_t>(tap * channels_ + c)]) * input;
          }
          convolved.push_back(silu(sum));
        }
        for (int c = 0; c < channels_ && s.d_conv > 1; ++c) {
          ring[position % s.d_conv * channels_ + c] = row[p_.inner() + c];
        }
        for (int head = 0; head < s.heads; ++head) {
          const auto h = static_cast<size_t>(head);
          const double raw = static_cast<double>(row[p_.inner() + channels_ + head]) + dt_bias_[h];
          const double dt = std::clamp(std::log1p(std::exp(raw)), static_cast<double>(p_.dt_min),
                                       static_cast<double>(p_.dt_max));
          const int group = head / (s.heads / s.groups);
          const double* b = convolved.data() + p_.inner() + group * s.d_state;
          const double* c = b + s.groups * s.d_state;
          for (int i = 0; i < s.head_dim; ++i) {
            const int channel = head * s.head_dim + i;
            const double x = convolved[static_cast<size_t>(channel)];
            double y = d_[h] * x;
            for (int n = 0; n < s.d_state; ++n) {
              float& element = state[(head * s.d_state + n) * s.head_dim + i];
              element = static_cast<float>(std::exp(dt * a_[h]) * element + dt * b[n] * x);
              y += c[n] * element;
            }
            output[static_cast<size_t>(RowOf(sequence, token) * output_stride_ + channel)] =
                s.gates ? y * silu(row[channel]) : y;
          }
        }
      }
    }
    return output;
  }

  // With the rings of deferred tokens as they were in the beginning.
  std::vector<float> WithoutDeferred(std::vector<float> slots) const {
    for (size_t at = static_cast<size_t>(deferred_offset_); at < slots.size(); at += slot_floats_) {
      std::copy_n(slots_.begin() + static_cast<std::ptrdiff_t>(at),
                  slot_floats_ - static_cast<size_t>(deferred_offset_),
                  slots.begin() + static_cast<std::ptrdiff_t>(at));
    }
    return slots;
  }

  struct Result {
    std::vector<float> output;
    std::vector<float> slots;
    std::vector<std::vector<float>> after;  // each launch: the slots
  };
  // launch(params, first token, runs) puts kernels on the stream for `tokens` tokens of each.
  // settle_every: of steps; what they defer is settled after so many launches and the last one.
  template <class Launch>
  Result Run(int tokens_at_a_time, Launch launch, int settle_every = 0) const {
    const DeviceArray<float> conv_weight(conv_weight_), conv_bias(conv_bias_), dt_bias(dt_bias_),
        a(a_), d(d_), slots(slots_), projected(projected_);
    const DeviceArray<float> output(static_cast<size_t>(kSequences * kTokens * output_stride_));
    const Stream stream;
    Mamba2Params p = p_;
    p.conv_weight = conv_weight.data();
    p.conv_bias = GetParam().bias ? conv_bias.data() : nullptr;
    p.dt_bias = dt_bias.data();
    p.a = a.data();
    p.d = d.data();
    p.run_count = kSequences;
    p.projected = projected.data();
    p.projected_stride = width_;
    p.output = output.data();
    p.output_stride = output_stride_;
    const bool defers = settle_every > 0 && DefersWrites(p.head_dim);
    if (defers) p.deferred_offset = deferred_offset_;
    Result result;
    int settled = 0;
    const auto runs_from = [&](int begin, int tokens) {
      std::vector<SequenceRun> runs;
      for (int i = 0; i < kSequences; ++i) {
        runs.push_back({slots.data() + static_cast<size_t>(kSlots[i]) * slot_floats_, nullptr,
                        kPositions[i] + begin, RowOf(i, begin), tokens, kPositions[i] + settled});
      }
      return runs;
    };
    for (int begin = 0; begin < kTokens; begin += tokens_at_a_time) {
      const int tokens = std::min(tokens_at_a_time, kTokens - begin);
      const DeviceArray<SequenceRun> device_runs(runs_from(begin, tokens));
      p.runs = device_runs.data();
      launch(p, tokens, stream.get());
      stream.Synchronize();
      const int done = begin + tokens;
      if (defers && (done % settle_every == 0 || done == kTokens)) {
        const DeviceArray<SequenceRun> settled_runs(runs_from(done, 0));
        p.runs = settled_runs.data();
        LaunchMamba2Settle(p, stream.get());
        stream.Synchronize();
        settled = done;
      }
      result.after.push_back(WithoutDeferred(slots.Download()));
    }
    result.output = output.Download();
    result.slots = result.after.back();
    return result;
  }

  Result Steps(int pieces = 0, int multiprocessors = 132, int settle_every = 1) const {
    return Run(
        1,
        [=](Mamba2Params p, int, cudaStream_t stream) {
          p.pieces = pieces;
          p.multiprocessors = multiprocessors;
          LaunchMamba2Step(p, stream);
        },
        settle_every);
  }
  Result Prefill(int tokens_at_a_time = kTokens) const {
    const DeviceArray<float> convolved(static_cast<size_t>(kSequences * kTokens * channels_));
    return Run(tokens_at_a_time, [&](const Mamba2Params& p, int tokens, cudaStream_t stream) {
      LaunchMamba2Prefill(p, tokens, convolved.data(), stream);
    });
  }

  // With dt in memory of its own, and what is convolved already as the input.
  Result ScanOfGathered(int tokens_at_a_time, const std::vector<float>& convolved) const {
    const DeviceArray<float> device_convolved(convolved);
    std::vector<float> dt;
    for (int row = 0; row < kSequences * kTokens; ++row) {
      for (int head = 0; head < p_.heads; ++head) {
        dt.push_back(projected_[static_cast<size_t>(row * width_ + p_.inner() + channels_ + head)]);
      }
    }
    const DeviceArray<float> device_dt(dt);
    return Run(tokens_at_a_time, [&](Mamba2Params p, int, cudaStream_t stream) {
      p.dt = device_dt.data();
      p.dt_stride = p_.heads;
      p.d_conv = 1;
      LaunchMamba2Scan(p, device_convolved.data(), stream);
    });
  }
  std::vector<float> Convolved() const {
    const DeviceArray<float> convolved(static_cast<size_t>(kSequences * kTokens * channels_));
    Run(kTokens, [&](const Mamba2Params& p, int tokens, cudaStream_t stream) {
      LaunchMamba2Prefill(p, tokens, convolved.data(), stream);
    });
    return convolved.Download();
  }

  // Each launch for itself, from the states that the one before left, so that a rounding to the
  // other side shows as such.
  void ExpectEachLaunch(const Result& found, int tokens_at_a_time) const {
    std::vector<float> before = slots_;
    for (size_t i = 0; i < found.after.size(); ++i) {
      const int begin = static_cast<int>(i) * tokens_at_a_time;
      const int tokens = std::min(tokens_at_a_time, kTokens - begin);
      std::vector<float> exact = states_.Widened(before);
      const std::vector<double> expected = Reference(exact, begin, tokens);
      double largest = 0;
      for (double value : expected) largest = std::max(largest, std::abs(value));
      for (int sequence = 0; sequence < kSequences; ++sequence) {
        for (int token = begin; token < begin + tokens; ++token) {
          for (int channel = 0; channel < p_.inner(); ++channel) {
            const auto at = static_cast<size_t>(RowOf(sequence, token) * output_stride_ + channel);
            ASSERT_NEAR(found.output[at], expected[at], 3e-6 * largest)
                << "sequence " << sequence << " token " << token << " channel " << channel;
          }
        }
      }
      const std::vector<float> slots = states_.Widened(found.after[i]);
      for (size_t k = 0; k < slots.size(); ++k) {
        const size_t at = k % slot_floats_ - static_cast<size_t>(p_.ssm_offset);
        const double room = at < states_.count ? states_.HalfStep(exact[k]) +
                                                     2e-6 * std::max(10.0f, std::abs(exact[k]))
                                               : 0;
        ASSERT_NEAR(slots[k], exact[k], room)
            << "token " << begin << " slot " << k / slot_floats_ << " float " << k % slot_floats_;
      }
      EXPECT_EQ(states_.Behind(found.after[i]), states_.Behind(before));
      before = found.after[i];
    }
  }

  StatesInSlots states_;
  Mamba2Params p_;
  int channels_ = 0;
  int width_ = 0;
  int output_stride_ = 0;
  size_t slot_floats_ = 0;
  long long deferred_offset_ = 0;
  std::vector<float> conv_weight_, conv_bias_, dt_bias_, a_, d_, slots_, projected_;
};

using Mamba2StoredStates = Mamba2Kernels;

TEST_P(Mamba2Kernels, StepsMatchTheReference) {
  std::vector<float> expected_slots = slots_;
  const std::vector<double> expected = Reference(expected_slots);
  const Result found = Steps();
  double largest = 0;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(found.output[i], expected[i], 3e-6 * largest)
        << "row " << i / static_cast<size_t>(output_stride_) << " channel "
        << i % static_cast<size_t>(output_stride_);
  }
  // The whole of every slot: rings exactly, nothing else touched.
  for (size_t i = 0; i < expected_slots.size(); ++i) {
    const bool is_state = i % slot_floats_ >= static_cast<size_t>(p_.ssm_offset);
    ASSERT_NEAR(found.slots[i], expected_slots[i],
                is_state ? 2e-6 * std::max(10.0f, std::abs(expected_slots[i])) : 0)
        << "slot " << i / slot_floats_ << " float " << i % slot_floats_;
  }
}

TEST_P(Mamba2Kernels, PiecesOfABatchChangeNothing) {
  const Result expected = Steps();
  for (int pieces = 1; pieces <= GetParam().heads / GetParam().groups; ++pieces) {
    const Result found = Steps(pieces);
    EXPECT_EQ(found.output, expected.output) << pieces << " pieces";
    EXPECT_EQ(found.slots, expected.slots) << pieces << " pieces";
  }
  // On so small a device few sequences are many.
  const Result found = Steps(0, /*multiprocessors=*/1);
  EXPECT_EQ(found.output, expected.output);
  EXPECT_EQ(found.slots, expected.slots);
}

TEST_P(Mamba2Kernels, DeferredWritesChangeNothing) {
  if (!DefersWrites(GetParam().head_dim)) return;
  const Result expected = Steps();
  for (const int pieces : {0, 1, GetParam().heads / GetParam().groups}) {
    for (const int settle_every : {2, 3, 6, kTokens}) {
      const Result found = Steps(pieces, 132, settle_every);
      EXPECT_EQ(found.output, expected.output) << pieces << " pieces, " << settle_every;
      EXPECT_EQ(found.slots, expected.slots) << pieces << " pieces, " << settle_every;
    }
  }
  // In between the states in memory are behind, each head in its turn.
  const Result deferred = Steps(0, 132, kTokens);
  for (size_t i = 0; i + 1 < expected.after.size(); ++i) {
    EXPECT_NE(deferred.after[i], expected.after[i]) << "token " << i;
  }
}

TEST_P(Mamba2Kernels, PrefillIsBitwiseTheSameAsSteps) {
  const Result steps = Steps();
  const Result prefill = Prefill();
  EXPECT_EQ(prefill.output, steps.output);
  EXPECT_EQ(prefill.slots, steps.slots);
}

TEST_P(Mamba2StoredStates, AreRoundedOncePerLaunch) {
  ExpectEachLaunch(Steps(), 1);
  for (const int tokens : {1, 5, kTokens}) ExpectEachLaunch(Prefill(tokens), tokens);
}

TEST_P(Mamba2StoredStates, OfABatchAreTheSame) {
  const Result expected = Steps();
  const int heads = GetParam().heads / GetParam().groups;
  for (int pieces = 1; pieces <= heads; pieces += std::max(1, heads - 1)) {
    const Result found = Steps(pieces);
    EXPECT_EQ(found.output, expected.output) << pieces << " pieces";
    EXPECT_EQ(found.slots, expected.slots) << pieces << " pieces";
  }
  const Result found = Steps(0, /*multiprocessors=*/1);
  EXPECT_EQ(found.output, expected.output);
  EXPECT_EQ(found.slots, expected.slots);
  // A scan of single tokens, too.
  const Result scanned = Prefill(1);
  EXPECT_EQ(scanned.output, expected.output);
  EXPECT_EQ(scanned.slots, expected.slots);
}

// Deferred states are rounded in their turns alone, so less often.
TEST_P(Mamba2StoredStates, AreCloseWhereDeferred) {
  if (!DefersWrites(GetParam().head_dim)) return;
  const Result every = Steps();
  double largest = 0;
  for (float value : every.output) largest = std::max(largest, std::abs(double{value}));
  for (const int pieces : {0, 1, GetParam().heads / GetParam().groups}) {
    const Result found = Steps(pieces, 132, kTokens);
    const double room = largest * (GetParam().dtype == DType::kF16 ? 0.002 : 0.016);
    for (size_t i = 0; i < every.output.size(); ++i) {
      ASSERT_NEAR(found.output[i], every.output[i], room) << "output " << i;
    }
  }
}

// Inputs that drive states far beyond what f16 holds.
TEST_P(Mamba2StoredStates, StayFinite) {
  for (float& value : projected_) value *= 200;
  for (float& value : a_) value = -1e-6f;
  const std::vector<float> found = states_.Widened(Steps().slots);
  float largest = 0;
  for (const int slot : kSlots) {
    const float* states = found.data() + static_cast<size_t>(slot) * slot_floats_ + p_.ssm_offset;
    for (size_t i = 0; i < states_.count; ++i) {
      ASSERT_TRUE(std::isfinite(states[i])) << "slot " << slot << " element " << i;
      largest = std::max(largest, std::abs(states[i]));
    }
  }
  if (GetParam().dtype == DType::kF16) {
    EXPECT_EQ(largest, 65504);
  } else {
    EXPECT_GT(largest, 65504);
  }
}

// Between 16-bit neighbours: one with head_dim that no vector divides, one whose rows copies of 16
// bytes do not fit, several parts, rows beyond the last.
INSTANTIATE_TEST_SUITE_P(Narrow, Mamba2StoredStates,
                         testing::Values(Sizes{6, 32, 128, 1, 4, true, true, DType::kF16},
                                         Sizes{6, 32, 128, 2, 4, true, true, DType::kBF16},
                                         Sizes{8, 80, 64, 4, 4, false, true, DType::kF16},
                                         Sizes{4, 64, 100, 2, 4, true, true, DType::kBF16},
                                         Sizes{5, 20, 100, 5, 5, false, true, DType::kF16},
                                         Sizes{3, 20, 37, 1, 4, true, true, DType::kBF16},
                                         Sizes{4, 37, 40, 2, 2, true, true, DType::kF16},
                                         Sizes{3, 7, 5, 1, 3, true, false, DType::kBF16},
                                         Sizes{4, 64, 128, 2, 4, true, false, DType::kF16}));

INSTANTIATE_TEST_SUITE_P(
    Sizes, Mamba2Kernels,
    testing::Values(Sizes{6, 32, 128, 1, 4, true}, Sizes{4, 64, 128, 2, 4, true},
                    Sizes{8, 80, 64, 4, 4, false}, Sizes{3, 16, 16, 3, 1, true},
                    Sizes{4, 37, 40, 2, 2, true}, Sizes{2, 7, 5, 1, 3, false},
                    Sizes{2, 64, 256, 1, 8, true}, Sizes{5, 20, 100, 5, 5, false},
                    Sizes{4, 64, 128, 2, 4, true, false}, Sizes{3, 7, 36, 1, 3, true, false}));

}  // namespace
}  // namespace adder::cuda
