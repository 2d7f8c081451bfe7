// The causal convolution against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/causal_conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "core/dtype.h"
#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

struct Rule {
  int channels;
  int d_conv;
  bool bias;
  bool gates;  // before and after
  bool silu;
};
std::ostream& operator<<(std::ostream& out, const Rule& r) {
  return out << r.channels << " channels, " << r.d_conv << " taps" << (r.bias ? ", bias" : "")
             << (r.gates ? ", gates" : "") << (r.silu ? ", silu" : "");
}

// Slots in another order than sequences, and sequences at different phases of the ring.
constexpr int kSlots[] = {2, 0, 3};
constexpr int kPositions[] = {0, 5, 1003};
constexpr int kSequences = 3;
constexpr int kTokens = 11;

class CausalConvKernels : public testing::TestWithParam<Rule> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    const Rule& r = GetParam();
    p_.channels = r.channels;
    p_.d_conv = r.d_conv;
    p_.silu = r.silu;
    // The channels lie behind something else, and the gates around them.
    p_.x = 2 * r.channels + 1;
    if (r.gates) {
      p_.gate_before = 1;
      p_.gate_after = 1 + r.channels;
    }
    p_.conv_offset = 64;
    p_.input_stride = 3 * r.channels + 6;
    p_.output_stride = r.channels + 3;
    p_.rounded_output_stride = r.channels + 8;
    slot_floats_ = 64 + r.d_conv * r.channels + 9;
    Numbers numbers(17);
    weight_ = numbers.Vector(static_cast<size_t>(r.d_conv * r.channels));
    bias_ = numbers.Vector(static_cast<size_t>(r.channels));
    input_ = numbers.Vector(static_cast<size_t>(kSequences * kTokens * p_.input_stride), 2);
    slots_ = numbers.Vector(static_cast<size_t>(4 * slot_floats_));
  }

  static int RowOf(int sequence, int token) { return sequence * kTokens + token; }

  struct Result {
    std::vector<float> output;
    std::vector<uint16_t> rounded;
    std::vector<float> slots;
  };
  // Runs of `tokens_at_a_time` tokens of every sequence.
  Result Run(int tokens_at_a_time) const {
    const DeviceArray<float> weight(weight_), bias(bias_), input(input_), slots(slots_);
    const DeviceArray<float> output(static_cast<size_t>(kSequences * kTokens * p_.output_stride));
    const DeviceArray<uint16_t> rounded(
        static_cast<size_t>(kSequences * kTokens * p_.rounded_output_stride));
    const Stream stream;
    CausalConvParams p = p_;
    p.weight = weight.data();
    p.bias = GetParam().bias ? bias.data() : nullptr;
    p.run_count = kSequences;
    p.input = input.data();
    p.output = output.data();
    p.rounded_output = rounded.data();
    for (int begin = 0; begin < kTokens; begin += tokens_at_a_time) {
      const int tokens = std::min(tokens_at_a_time, kTokens - begin);
      std::vector<SequenceRun> runs;
      for (int i = 0; i < kSequences; ++i) {
        runs.push_back({slots.data() + kSlots[i] * slot_floats_, nullptr, kPositions[i] + begin,
                        RowOf(i, begin), tokens, 0});
      }
      const DeviceArray<SequenceRun> device_runs(runs);
      p.runs = device_runs.data();
      LaunchCausalConv(p, tokens, stream.get());
      stream.Synchronize();
    }
    return {output.Download(), rounded.Download(), slots.Download()};
  }

  CausalConvParams p_;
  int slot_floats_ = 0;
  std::vector<float> weight_, bias_, input_, slots_;
};

TEST_P(CausalConvKernels, StepsMatchTheReference) {
  const Rule& r = GetParam();
  const Result found = Run(1);
  std::vector<float> slots = slots_;
  for (int sequence = 0; sequence < kSequences; ++sequence) {
    float* ring = slots.data() + kSlots[sequence] * slot_floats_ + p_.conv_offset;
    for (int token = 0; token < kTokens; ++token) {
      const int position = kPositions[sequence] + token;
      const float* row = input_.data() + RowOf(sequence, token) * p_.input_stride;
      for (int c = 0; c < r.channels; ++c) {
        const float u = r.gates ? row[p_.x + c] * row[p_.gate_before + c] : row[p_.x + c];
        double y = r.bias ? bias_[static_cast<size_t>(c)] : 0;
        for (int tap = 0; tap < r.d_conv; ++tap) {
          const double value =
              tap + 1 == r.d_conv ? u : ring[(position + 1 + tap) % r.d_conv * r.channels + c];
          y += weight_[static_cast<size_t>(tap * r.channels + c)] * value;
        }
        if (r.silu) y /= 1 + std::exp(-y);
        if (r.gates) y *= row[p_.gate_after + c];
        if (r.d_conv > 1) ring[position % r.d_conv * r.channels + c] = u;
        const int at = RowOf(sequence, token);
        const float value = found.output[static_cast<size_t>(at * p_.output_stride + c)];
        ASSERT_NEAR(value, y, 1e-5 * (1 + std::abs(y))) << "row " << at << " channel " << c;
        ASSERT_EQ(found.rounded[static_cast<size_t>(at * p_.rounded_output_stride + c)],
                  FloatToBF16(value));
      }
    }
  }
  EXPECT_EQ(found.slots, slots);
}

TEST_P(CausalConvKernels, RunsAreBitwiseTheSameAsSteps) {
  const Result steps = Run(1);
  for (const int tokens : {2, 4, kTokens}) {
    const Result found = Run(tokens);
    EXPECT_EQ(found.output, steps.output) << tokens << " tokens at a time";
    EXPECT_EQ(found.rounded, steps.rounded) << tokens << " tokens at a time";
    EXPECT_EQ(found.slots, steps.slots) << tokens << " tokens at a time";
  }
}

INSTANTIATE_TEST_SUITE_P(
    Rules, CausalConvKernels,
    testing::Values(Rule{200, 3, false, true, false}, Rule{129, 4, true, false, true},
                    Rule{64, 4, false, true, true}, Rule{70, 1, true, true, false},
                    Rule{40, 2, false, false, false}, Rule{50, 8, true, true, true}));

// Runs of several pieces, of a few tokens and of one, with and without gates.
class ConvPiecesTest : public KernelTest {};

TEST_F(ConvPiecesTest, AreTheRoundedRuns) {
  constexpr int kLengths[] = {1, 150, 20, 256};
  constexpr int kBegins[] = {9, 2, 0, 1001};
  for (const Rule& r : {Rule{40, 4, true, false, true}, Rule{520, 3, false, true, false},
                        Rule{12, 7, true, true, true}, Rule{16, 1, true, false, true}}) {
    SCOPED_TRACE(testing::Message() << r);
    CausalConvParams p;
    p.channels = r.channels;
    p.d_conv = r.d_conv;
    p.silu = r.silu;
    p.x = 4;
    if (r.gates) p.gate_before = 4 + r.channels, p.gate_after = 4 + 2 * r.channels;
    ASSERT_TRUE(ConvPiecesSupport(p));
    p.conv_offset = 64;
    p.input_stride = 3 * r.channels + 8;
    p.output_stride = p.rounded_output_stride = r.channels;
    Numbers numbers(29);
    const DeviceArray<float> weight(numbers.Vector(static_cast<size_t>(r.d_conv * r.channels)));
    const DeviceArray<float> bias(numbers.Vector(static_cast<size_t>(r.channels)));
    p.weight = weight.data();
    p.bias = r.bias ? bias.data() : nullptr;
    const auto slot_floats = static_cast<size_t>(64 + r.d_conv * r.channels);
    const std::vector<float> slots = numbers.Vector(4 * slot_floats);
    std::vector<Piece> pieces;
    int rows = 0;
    for (int i = 0; i < 4; ++i) {
      for (int done = 0; done < kLengths[i]; done += kPieceTokens) {
        pieces.push_back({rows + done, std::min(kPieceTokens, kLengths[i] - done), i, 0});
      }
      rows += kLengths[i];
    }
    const DeviceArray<Piece> device_pieces(pieces);
    const DeviceArray<float> input(numbers.Vector(static_cast<size_t>(rows * p.input_stride), 2));
    p.input = input.data();
    p.run_count = 4;
    const auto run = [&](bool in_pieces) {
      const DeviceArray<float> device_slots(slots);
      const DeviceArray<float> output(static_cast<size_t>(rows * r.channels));
      const DeviceArray<uint16_t> rounded(static_cast<size_t>(rows * r.channels));
      std::vector<SequenceRun> runs;
      int row = 0;
      for (int i = 0; i < 4; ++i) {
        runs.push_back({device_slots.data() + static_cast<size_t>(i) * slot_floats, nullptr,
                        kBegins[i], row, kLengths[i], 0});
        row += kLengths[i];
      }
      const DeviceArray<SequenceRun> device_runs(runs);
      CausalConvParams of_run = p;
      of_run.runs = device_runs.data();
      of_run.output = in_pieces ? nullptr : output.data();
      of_run.rounded_output = rounded.data();
      const Stream stream;
      if (in_pieces) {
        LaunchCausalConvPieces(of_run, device_pieces.data(), static_cast<int>(pieces.size()),
                               stream.get());
      } else {
        LaunchCausalConv(of_run, 256, stream.get());
      }
      stream.Synchronize();
      return std::make_pair(rounded.Download(), device_slots.Download());
    };
    EXPECT_EQ(run(true), run(false));
  }
}

}  // namespace
}  // namespace adder::cuda::test
