// The Mamba-1 scan against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/mamba1.h"

#include <gtest/gtest.h>

#include <cmath>
#include <ostream>

#include "core/dtype.h"
#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

struct Sizes {
  int inner;
  int d_state;
  bool norms;
  bool norm_weights;
};
std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << s.inner << " channels, state " << s.d_state << (s.norms ? ", norms" : "")
             << (s.norm_weights ? " with weights" : "");
}

// Slots in another order than sequences.
constexpr int kSlots[] = {2, 0, 3};
constexpr int kSequences = 3;
constexpr int kTokens = 23;  // more than are staged together

class Mamba1Kernels : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    const Sizes& s = GetParam();
    p_.inner = s.inner;
    p_.d_state = s.d_state;
    p_.ssm_offset = 64;
    // Rows of different widths, each with something behind its values.
    p_.x_stride = s.inner + 4;
    p_.b_c_stride = 2 * s.d_state + 7;
    p_.dt_stride = s.inner + 8;
    p_.z_stride = 2 * s.inner + 4;
    p_.output_stride = s.inner + 1;
    p_.rounded_output_stride = s.inner + 8;
    p_.b_norm = {s.norms, nullptr, 0.01f};
    p_.c_norm = {s.norms, nullptr, 0.03f};
    slot_floats_ = 64 + s.inner * s.d_state + 5;
    Numbers numbers(23);
    const auto rows = [&](int stride, float scale) {
      return numbers.Vector(static_cast<size_t>(kSequences * kTokens * stride), scale);
    };
    x_ = rows(p_.x_stride, 1);
    b_c_ = rows(p_.b_c_stride, 1.5f);
    dt_ = rows(p_.dt_stride, 3);
    z_ = rows(p_.z_stride, 2);
    a_ = numbers.Vector(static_cast<size_t>(s.d_state * s.inner), 1.5f, -1.6f);
    d_ = numbers.Vector(static_cast<size_t>(s.inner));
    b_weight_ = numbers.Vector(static_cast<size_t>(s.d_state), 0.5f, 1);
    c_weight_ = numbers.Vector(static_cast<size_t>(s.d_state), 0.5f, 1.5f);
    slots_ = numbers.Vector(static_cast<size_t>(4 * slot_floats_));
  }

  static int RowOf(int sequence, int token) { return sequence * kTokens + token; }

  struct Result {
    std::vector<float> output;
    std::vector<uint16_t> rounded;
    std::vector<float> slots;
  };
  Result Run(int tokens_at_a_time) const {
    const DeviceArray<float> x(x_), b_c(b_c_), dt(dt_), z(z_), a(a_), d(d_), b_weight(b_weight_),
        c_weight(c_weight_), slots(slots_);
    const DeviceArray<float> output(static_cast<size_t>(kSequences * kTokens * p_.output_stride));
    const DeviceArray<uint16_t> rounded(
        static_cast<size_t>(kSequences * kTokens * p_.rounded_output_stride));
    const Stream stream;
    Mamba1Params p = p_;
    p.x = x.data();
    p.b_c = b_c.data();
    p.dt = dt.data();
    p.z = z.data();
    p.a = a.data();
    p.d = d.data();
    if (GetParam().norm_weights) {
      p.b_norm.weight = b_weight.data();
      p.c_norm.weight = c_weight.data();
    }
    p.run_count = kSequences;
    p.output = output.data();
    p.rounded_output = rounded.data();
    for (int begin = 0; begin < kTokens; begin += tokens_at_a_time) {
      const int tokens = std::min(tokens_at_a_time, kTokens - begin);
      std::vector<SequenceRun> runs;
      for (int i = 0; i < kSequences; ++i) {
        runs.push_back(
            {slots.data() + kSlots[i] * slot_floats_, nullptr, begin, RowOf(i, begin), tokens, 0});
      }
      const DeviceArray<SequenceRun> device_runs(runs);
      p.runs = device_runs.data();
      LaunchMamba1Scan(p, stream.get());
      stream.Synchronize();
    }
    return {output.Download(), rounded.Download(), slots.Download()};
  }

  std::vector<double> Normed(const float* from, const SmallNorm& norm,
                             const std::vector<float>& weight) const {
    const int size = GetParam().d_state;
    double squares = 0;
    for (int n = 0; n < size; ++n) squares += static_cast<double>(from[n]) * from[n];
    std::vector<double> to(from, from + size);
    for (int n = 0; norm.used && n < size; ++n) {
      to[static_cast<size_t>(n)] *=
          (GetParam().norm_weights ? weight[static_cast<size_t>(n)] : 1.0f) /
          std::sqrt(squares / size + static_cast<double>(norm.eps));
    }
    return to;
  }

  Mamba1Params p_;
  int slot_floats_ = 0;
  std::vector<float> x_, b_c_, dt_, z_, a_, d_, b_weight_, c_weight_, slots_;
};

TEST_P(Mamba1Kernels, StepsMatchTheReference) {
  const Sizes& s = GetParam();
  const Result found = Run(1);
  std::vector<float> slots = slots_;
  for (int sequence = 0; sequence < kSequences; ++sequence) {
    float* states = slots.data() + kSlots[sequence] * slot_floats_ + p_.ssm_offset;
    for (int token = 0; token < kTokens; ++token) {
      const int row = RowOf(sequence, token);
      const float* b_row = b_c_.data() + row * p_.b_c_stride;
      const std::vector<double> b = Normed(b_row, p_.b_norm, b_weight_);
      const std::vector<double> c = Normed(b_row + s.d_state, p_.c_norm, c_weight_);
      for (int i = 0; i < s.inner; ++i) {
        const double step = std::log1p(
            std::exp(static_cast<double>(dt_[static_cast<size_t>(row * p_.dt_stride + i)])));
        const double x = x_[static_cast<size_t>(row * p_.x_stride + i)];
        const double z = z_[static_cast<size_t>(row * p_.z_stride + i)];
        double y = d_[static_cast<size_t>(i)] * x;
        for (int n = 0; n < s.d_state; ++n) {
          float& h = states[n * s.inner + i];
          const double next = std::exp(step * a_[static_cast<size_t>(n * s.inner + i)]) * h +
                              step * b[static_cast<size_t>(n)] * x;
          h = static_cast<float>(next);
          y += c[static_cast<size_t>(n)] * next;
        }
        y *= z / (1 + std::exp(-z));
        const float value = found.output[static_cast<size_t>(row * p_.output_stride + i)];
        ASSERT_NEAR(value, y, 3e-5 * (1 + std::abs(y))) << "row " << row << " channel " << i;
        ASSERT_EQ(found.rounded[static_cast<size_t>(row * p_.rounded_output_stride + i)],
                  FloatToBF16(value));
      }
    }
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto in_slot = static_cast<int>(i % static_cast<size_t>(slot_floats_));
    const bool is_state = in_slot >= 64 && in_slot < 64 + s.inner * s.d_state;
    ASSERT_NEAR(found.slots[i], slots[i], is_state ? 1e-5 * (1 + std::abs(slots[i])) : 0)
        << "float " << i;
  }
}

TEST_P(Mamba1Kernels, RunsAreBitwiseTheSameAsSteps) {
  const Result steps = Run(1);
  for (const int tokens : {3, 16, kTokens}) {
    const Result found = Run(tokens);
    EXPECT_EQ(found.output, steps.output) << tokens << " tokens at a time";
    EXPECT_EQ(found.rounded, steps.rounded) << tokens << " tokens at a time";
    EXPECT_EQ(found.slots, steps.slots) << tokens << " tokens at a time";
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, Mamba1Kernels,
                         testing::Values(Sizes{130, 16, false, false}, Sizes{64, 16, true, true},
                                         Sizes{40, 5, true, false}, Sizes{97, 32, true, true},
                                         Sizes{70, 40, false, false}));

}  // namespace
}  // namespace adder::cuda::test
