// Lightning attention against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/lightning.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/kernels/ragged_runs_for_test.h"

namespace adder::cuda::test {
namespace {

struct Sizes {
  int heads;
  int head_dim;
};

class LightningKernels : public testing::TestWithParam<Sizes> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
    heads_ = GetParam().heads;
    dim_ = GetParam().head_dim;
    stride_ = 3 * heads_ * dim_ + 5;
    Numbers numbers(9);
    for (int head = 0; head < heads_; ++head) {
      slopes_.push_back(0.1f + 0.3f * static_cast<float>(head));
    }
    qkv_ = numbers.Vector(static_cast<size_t>(kRaggedRows * stride_), 1.5f);
    slots_ = numbers.Vector(static_cast<size_t>(4 * (kOffset + heads_ * dim_ * dim_ + 5)));
  }

  RaggedResult Run(int at_a_time) const {
    const DeviceArray<float> slopes(slopes_);
    return RunRagged({qkv_}, heads_ * dim_ + 3, slots_, at_a_time,
                     [&](const RaggedBatch& batch, const std::vector<const float*>& inputs,
                         float* output, cudaStream_t stream) {
                       LightningParams p;
                       p.heads = heads_;
                       p.head_dim = dim_;
                       p.slopes = slopes.data();
                       p.state_offset = kOffset;
                       p.runs = batch.runs;
                       p.run_count = batch.run_count;
                       p.qkv = inputs[0];
                       p.qkv_stride = stride_;
                       p.output = output;
                       p.output_stride = heads_ * dim_ + 3;
                       LaunchLightning(p, stream);
                     });
  }

  static constexpr int kOffset = 64;
  int heads_ = 0;
  int dim_ = 0;
  int stride_ = 0;
  std::vector<float> slopes_, qkv_, slots_;
};

TEST_P(LightningKernels, StepsMatchTheReference) {
  const RaggedResult found = Run(1);
  const size_t slot_floats = slots_.size() / 4;
  for (int sequence = 0; sequence < kRaggedSequences; ++sequence) {
    const size_t slot = static_cast<size_t>(kRaggedSlots[sequence]) * slot_floats + kOffset;
    std::vector<double> states(
        slots_.begin() + static_cast<std::ptrdiff_t>(slot),
        slots_.begin() + static_cast<std::ptrdiff_t>(slot) + heads_ * dim_ * dim_);
    for (int token = 0; token < kRaggedTokens[sequence]; ++token) {
      const int row = RaggedRow(sequence, token);
      for (int head = 0; head < heads_; ++head) {
        const float* q = qkv_.data() + row * stride_ + 3 * head * dim_;
        const double decay = std::exp(-slopes_[static_cast<size_t>(head)]);
        for (int p = 0; p < dim_; ++p) {
          double y = 0;
          for (int n = 0; n < dim_; ++n) {
            double& h = states[static_cast<size_t>((head * dim_ + n) * dim_ + p)];
            h = decay * h + static_cast<double>(q[dim_ + n]) * q[2 * dim_ + p];
            y += q[n] * h;
          }
          const auto at = static_cast<size_t>(row * (heads_ * dim_ + 3) + head * dim_ + p);
          ASSERT_NEAR(found.output[at], y, 2e-5 * (5 + std::abs(y)))
              << "sequence " << sequence << " token " << token << " head " << head << " dim " << p;
        }
      }
    }
    for (size_t i = 0; i < states.size(); ++i) {
      ASSERT_NEAR(found.slots[slot + i], states[i], 2e-5 * (1 + std::abs(states[i])));
    }
  }
}

TEST_P(LightningKernels, RunsAreBitwiseTheSameAsSteps) {
  ExpectRunsAreSteps([&](int tokens) { return Run(tokens); });
}

INSTANTIATE_TEST_SUITE_P(Sizes, LightningKernels,
                         testing::Values(Sizes{2, 128}, Sizes{3, 64}, Sizes{4, 24}, Sizes{2, 72}));

}  // namespace
}  // namespace adder::cuda::test
