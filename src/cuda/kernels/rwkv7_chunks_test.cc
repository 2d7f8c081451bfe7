// RWKV-7's rule over chunks against the recurrence, token by token, in double precision: every head
// and run for itself, so that a mix-up of channels, heads, runs or chunks shows.
#include "cuda/kernels/rwkv7_chunks.h"

#include <algorithm>

#include "cuda/kernels/chunk_runs_for_test.h"
#include "cuda/kernels/kernel_test_support.h"
#include "cuda/kernels/rwkv7_step_for_test.h"

namespace adder::cuda::test {
namespace {

// Factors of products are bf16, which errs by 2^-9 each.
constexpr double kTolerance = 0.02;

class Rwkv7ChunksTest : public KernelTest {
 protected:
  // Decays of extreme inputs are as strong as they can be.
  void Compare(int heads, int head_dim, bool value_mix, const std::vector<RunSize>& sizes,
               float decay_offset = 0);
};

void Rwkv7ChunksTest::Compare(int heads, int head_dim, bool value_mix,
                              const std::vector<RunSize>& sizes, float decay_offset) {
  SCOPED_TRACE(testing::Message() << heads << " heads of " << head_dim);
  Numbers numbers(41);
  const auto dim = static_cast<size_t>(head_dim);
  const size_t inner = static_cast<size_t>(heads) * dim;
  const size_t stride = inner + 4;
  // A slot: something before, the state, something behind.
  constexpr size_t kBefore = 20;
  const size_t slot = kBefore + inner * dim + 4;
  std::vector<float> slots = numbers.Vector(sizes.size() * slot, 0.5f);
  auto [runs, pieces, first_pieces, rows] = MakeChunkRuns(sizes, slot, slots);
  const auto count = static_cast<size_t>(rows);
  // As Rwkv7Step counts them.
  std::vector<std::vector<float>> inputs;
  std::vector<DeviceArray<float>> device_inputs;
  for (int i = 0; i < 8; ++i) {
    inputs.push_back(numbers.Vector(count * stride, 1.2f, i == 3 ? decay_offset : 0));
    device_inputs.emplace_back(inputs.back());
  }
  std::vector<std::vector<float>> vectors;
  for (int i = 0; i < 5; ++i) vectors.push_back(numbers.Vector(inner, 0.6f, 0.7f));
  const Rwkv7DeviceVectors device_vectors(vectors);
  const DeviceArray<float> device_slots(slots);
  for (size_t r = 0; r < sizes.size(); ++r) runs[r].recurrent = device_slots.data() + r * slot;
  const DeviceArray<SequenceRun> device_runs(runs);
  const DeviceArray<Piece> device_pieces(pieces);
  const DeviceArray<int> device_first_pieces(first_pieces);
  const DeviceArray<__nv_bfloat16> output(
      std::vector<__nv_bfloat16>(count * inner, __float2bfloat16(NAN)));
  // What no kernel wrote must not matter: bits of NaN.
  const size_t chunks = 2 * pieces.size() * static_cast<size_t>(heads);
  const DeviceArray<__nv_bfloat16> records(
      std::vector<__nv_bfloat16>(chunks * kRwkv7Record, __float2bfloat16(NAN)));
  const DeviceArray<float> keeps(std::vector<float>(chunks * kRwkv7Keeps, NAN));
  const DeviceArray<float> sums(std::vector<float>(chunks * kRwkv7Sums, NAN));
  const DeviceArray<float> own(std::vector<float>(chunks * kRwkv7Own, NAN));

  Rwkv7ChunkParams params;
  RaggedBatch batch;
  batch.runs = device_runs.data();
  batch.run_count = static_cast<int>(runs.size());
  std::vector<const float*> rows_of;
  for (const DeviceArray<float>& input : device_inputs) rows_of.push_back(input.data());
  if (!value_mix) rows_of[7] = nullptr;
  // Chunks have an output of their own.
  params.mixer = device_vectors.Params(heads, head_dim, kBefore, static_cast<int>(stride), batch,
                                       rows_of, nullptr);
  Rwkv7Params& p = params.mixer;
  p.decay = device_inputs[3].data();
  p.rate = device_inputs[4].data();
  p.gate = device_inputs[5].data();
  if (value_mix) p.value_mix = device_inputs[6].data();
  params.output = output.data();
  params.output_stride = static_cast<int>(inner);
  params.pieces = device_pieces.data();
  params.piece_count = static_cast<int>(pieces.size());
  params.first_pieces = device_first_pieces.data();
  params.records = records.data();
  params.keeps = keeps.data();
  params.sums = sums.data();
  params.own = own.data();
  const Stream stream;
  LaunchRwkv7Chunks(params, stream.get());
  stream.Synchronize();

  const std::vector<float> found = Widened(output.Download());
  const std::vector<float> found_slots = device_slots.Download();
  double worst = 0;
  for (size_t r = 0; r < sizes.size(); ++r) {
    for (size_t head = 0; head < static_cast<size_t>(heads); ++head) {
      const size_t begin = r * slot + kBefore + head * dim * dim;
      std::vector<double> state(slots.begin() + static_cast<std::ptrdiff_t>(begin),
                                slots.begin() + static_cast<std::ptrdiff_t>(begin + dim * dim));
      std::vector<float> of_head;
      std::vector<double> expected;
      for (int token = 0; token < sizes[r].tokens; ++token) {
        const auto row = static_cast<size_t>(runs[r].row + token);
        const std::vector<double> y = Rwkv7Step(
            dim, value_mix,
            [&](size_t which, size_t i) {
              return static_cast<double>(inputs[which][row * stride + head * dim + i]);
            },
            [&](size_t which, size_t i) {
              return static_cast<double>(vectors[which][head * dim + i]);
            },
            state);
        expected.insert(expected.end(), y.begin(), y.end());
        const auto from = found.begin() + static_cast<std::ptrdiff_t>(row * inner + head * dim);
        of_head.insert(of_head.end(), from, from + head_dim);
      }
      const double error = RelativeError(of_head, expected, 0, of_head.size());
      EXPECT_LE(error, kTolerance) << "run " << r << ", head " << head;
      const std::vector<float> found_state(
          found_slots.begin() + static_cast<std::ptrdiff_t>(begin),
          found_slots.begin() + static_cast<std::ptrdiff_t>(begin + dim * dim));
      const double state_error = RelativeError(found_state, state, 0, state.size());
      EXPECT_LE(state_error, kTolerance) << "state of run " << r << ", head " << head;
      worst = std::max({worst, error, state_error});
    }
    for (size_t i = 0; i < slot; ++i) {
      if (i >= kBefore && i < kBefore + inner * dim) continue;
      ASSERT_EQ(found_slots[r * slot + i], slots[r * slot + i]) << "beside the state of run " << r;
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_F(Rwkv7ChunksTest, OneChunk) { Compare(3, 64, false, {{64, 0}}); }

TEST_F(Rwkv7ChunksTest, RaggedRuns) {
  const std::vector<RunSize> runs{{1, 3}, {129, 0}, {2, 1}, {64, 77}, {300, 9}, {65, 0}};
  Compare(2, 64, true, runs);
  Compare(3, 32, true, runs);
  Compare(1, 40, false, runs);
}

TEST_F(Rwkv7ChunksTest, StrongestDecays) { Compare(2, 64, false, {{150, 3}}, 20); }
TEST_F(Rwkv7ChunksTest, WeakestDecays) { Compare(2, 64, true, {{150, 3}}, -20); }

}  // namespace
}  // namespace adder::cuda::test
