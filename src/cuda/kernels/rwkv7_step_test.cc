// RWKV-7's mixer in steps, with the second matrices of its low-rank maps, against sums in double,
// for every weight format. Runs where there is a CUDA device.
#include "cuda/kernels/rwkv7_step.h"

#include <gtest/gtest.h>

#include <memory>

#include "cuda/kernels/matrices_for_test.h"
#include "cuda/kernels/ragged_runs_for_test.h"
#include "cuda/kernels/rwkv7_step_for_test.h"

namespace adder::cuda::test {
namespace {

constexpr int kUps = 4;  // decay, rate, gate, value_mix
constexpr Format kDense = {"bf16", 0, 0, Store::kBf16};

class Rwkv7Steps : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
  }

  static void Check(int heads, int dim, bool value_mix) {
    constexpr int kOffset = 64;
    const int inner = heads * dim;
    const int stride = inner + 4;
    const bool quantized = GetParam().bits > 0;
    // Of a quantised model, the narrow one is not.
    const int ranks[kUps] = {64, quantized ? 128 : 20, quantized ? 320 : 196, quantized ? 32 : 12};
    Numbers numbers(17);
    const auto size = static_cast<size_t>(inner);
    std::vector<float> vectors[5];
    for (std::vector<float>& vector : vectors) vector = numbers.Vector(size, 0.6f, 0.7f);
    std::vector<std::vector<float>> inputs;
    for (int i = 0; i < 3; ++i) {
      inputs.push_back(numbers.Vector(static_cast<size_t>(kRaggedRows * stride), 1.2f));
    }
    const auto low_stride = [&](int up) { return ranks[up] + 4 * up; };
    std::vector<std::unique_ptr<Matrices>> matrices;
    std::vector<std::vector<float>> biases;
    std::vector<DeviceArray<float>> device_biases;
    for (int up = 0; up < kUps; ++up) {
      inputs.push_back(
          numbers.Vector(static_cast<size_t>(kRaggedRows * low_stride(up)), 0.25f, 0.02f));
      const bool dense = quantized && ranks[up] % 64 != 0;
      matrices.push_back(std::make_unique<Matrices>(dense ? kDense : GetParam(), 1, inner,
                                                    ranks[up], false, 60 + up));
      biases.push_back(numbers.Vector(size, 0.8f, 0.2f));
      device_biases.emplace_back(biases.back());
    }
    inputs.push_back(numbers.Vector(static_cast<size_t>(kRaggedRows * stride), 1.2f));
    const std::vector<float> slots =
        numbers.Vector(static_cast<size_t>(4 * (kOffset + inner * dim + 6)), 0.5f);
    const Rwkv7DeviceVectors device_vectors(vectors);
    // The gate has no bias.
    const auto has_bias = [](int up) { return up != 2; };

    const RaggedResult found = RunRagged(
        inputs, stride, slots, 1,
        [&](const RaggedBatch& batch, const std::vector<const float*>& rows, float* output,
            cudaStream_t stream) {
          Rwkv7StepParams params;
          params.mixer = device_vectors.Params(heads, dim, kOffset, stride, batch, rows, output);
          Rwkv7Up* const ups[] = {&params.decay, &params.rate, &params.gate, &params.value_mix};
          for (int up = 0; up < (value_mix ? kUps : kUps - 1); ++up) {
            const auto i = static_cast<size_t>(up);
            *ups[up] = {matrices[i]->view, has_bias(up) ? device_biases[i].data() : nullptr,
                        rows[3 + i], low_stride(up)};
          }
          ASSERT_TRUE(CanStepRwkv7(params, OnDevice(false)));
          LaunchRwkv7Step(params, stream);
        });

    // Activations become integers of 16 bits, whose error a large gate multiplies, while their sums
    // are of what they were (1.6 times what sums of these integers would cost).
    const double tolerance = quantized ? 2e-3 : 3e-4;
    const size_t slot_floats = slots.size() / 4;
    const auto head_dim = static_cast<size_t>(dim);
    for (int sequence = 0; sequence < kRaggedSequences; ++sequence) {
      for (int head = 0; head < heads; ++head) {
        const size_t slot = static_cast<size_t>(kRaggedSlots[sequence]) * slot_floats + kOffset +
                            static_cast<size_t>(head) * head_dim * head_dim;
        const auto begin = slots.begin() + static_cast<std::ptrdiff_t>(slot);
        std::vector<double> state(begin, begin + dim * dim);
        for (int token = 0; token < kRaggedTokens[sequence]; ++token) {
          const int row = RaggedRow(sequence, token);
          const auto input = [&](int which, size_t i) {
            const int channel = head * dim + static_cast<int>(i);
            if (which < 3 || which == 7) {
              return static_cast<double>(
                  inputs[static_cast<size_t>(which)][static_cast<size_t>(row * stride + channel)]);
            }
            const int up = which - 3;
            const auto of_up = static_cast<size_t>(up);
            double sum = has_bias(up) ? biases[of_up][static_cast<size_t>(channel)] : 0.0;
            for (int c = 0; c < ranks[up]; ++c) {
              sum += matrices[of_up]->at(0, channel, c) *
                     inputs[of_up + 3][static_cast<size_t>(row * low_stride(up) + c)];
            }
            return sum;
          };
          const auto vector = [&](int which, size_t i) {
            return static_cast<double>(vectors[which][static_cast<size_t>(head * dim) + i]);
          };
          const std::vector<double> expected = Rwkv7Step(head_dim, value_mix, input, vector, state);
          for (size_t c = 0; c < head_dim; ++c) {
            const size_t at = static_cast<size_t>(row * stride + head * dim) + c;
            ASSERT_NEAR(found.output[at], expected[c], tolerance * (1 + std::abs(expected[c])))
                << "sequence " << sequence << " token " << token << " head " << head << " of "
                << dim << ", dim " << c;
          }
        }
        for (size_t i = 0; i < state.size(); ++i) {
          ASSERT_NEAR(found.slots[slot + i], state[i], 1e-4 * (1 + std::abs(state[i])));
        }
      }
    }
  }
};

TEST_P(Rwkv7Steps, MatchTheReference) {
  Check(3, 64, true);
  Check(2, 64, false);
}

TEST_P(Rwkv7Steps, OfSmallHeads) { Check(3, 32, true); }

INSTANTIATE_TEST_SUITE_P(Formats, Rwkv7Steps, testing::ValuesIn(kFormats),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(Rwkv7Step, KnowsWhatItTakes) {
  PackedMatrix matrix;
  matrix.rows = 128;
  matrix.cols = 64;
  matrix.chunks = 1;
  Rwkv7StepParams good;
  good.mixer.heads = 2;
  good.mixer.head_dim = 64;
  good.decay.matrix = good.rate.matrix = good.gate.matrix = matrix;
  if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
  EXPECT_TRUE(CanStepRwkv7(good, OnDevice(false)));
  EXPECT_FALSE(CanStepRwkv7(good, OnDevice(true)));
  const auto refuses = [&](auto change) {
    Rwkv7StepParams params = good;
    change(params);
    return !CanStepRwkv7(params, OnDevice(false));
  };
  EXPECT_TRUE(refuses([](Rwkv7StepParams& p) { p.mixer.head_dim = 128; }));
  EXPECT_TRUE(refuses([](Rwkv7StepParams& p) { p.mixer.heads = 3; }));
  EXPECT_TRUE(refuses([](Rwkv7StepParams& p) { p.mixer.state_offset = 3; }));
  EXPECT_TRUE(refuses([](Rwkv7StepParams& p) { p.gate.matrix.cols = 62; }));
  EXPECT_TRUE(refuses([](Rwkv7StepParams& p) { p.gate.matrix.format = WeightFormat::kF32; }));
  EXPECT_TRUE(refuses([](Rwkv7StepParams& p) { p.rate.matrix.chunks = 40; }));
}

}  // namespace
}  // namespace adder::cuda::test
