// RG-LRU over segments against the recurrence, token by token, in double precision: every run for
// itself, so that a mix-up of runs, pieces, segments or heads shows.
#include "cuda/kernels/rg_lru_chunks.h"

#include <algorithm>

#include "cuda/kernels/chunk_runs_for_test.h"
#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

// Weights of the gates and the output are bf16.
constexpr double kTolerance = 0.01;

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

class RgLruChunksTest : public KernelTest {
 protected:
  void Compare(int heads, int block, const std::vector<RunSize>& sizes);
};

void RgLruChunksTest::Compare(int heads, int block, const std::vector<RunSize>& sizes) {
  SCOPED_TRACE(testing::Message() << heads << " heads of " << block);
  Numbers numbers(37);
  const auto size = static_cast<size_t>(block);
  const auto width = static_cast<size_t>(heads) * size;
  // A slot: something before, the state, something behind.
  constexpr size_t kBefore = 20;
  const size_t slot = kBefore + width + 3;
  std::vector<float> slots = numbers.Vector(sizes.size() * slot);
  auto [runs, pieces, first_pieces, rows] = MakeChunkRuns(sizes, slot, slots);
  const auto count = static_cast<size_t>(rows);
  std::vector<int> row_runs;
  for (size_t r = 0; r < sizes.size(); ++r) {
    row_runs.insert(row_runs.end(), static_cast<size_t>(sizes[r].tokens), static_cast<int>(r));
  }
  const float scale = 2 / std::sqrt(static_cast<float>(block));
  const std::vector<float> input_weight = numbers.Vector(width * size, scale);
  const std::vector<float> recurrent_weight = numbers.Vector(width * size, scale);
  const std::vector<float> input_bias = numbers.Vector(width);
  const std::vector<float> recurrent_bias = numbers.Vector(width);
  const std::vector<float> decay = numbers.Vector(width, 1, -2);
  const size_t x_stride = width + 8;
  const size_t y_stride = 2 * width + 4;
  const std::vector<float> y = numbers.Vector(count * y_stride, 2);
  std::vector<__nv_bfloat16> x;
  for (float value : numbers.Vector(count * x_stride, 2)) x.push_back(__float2bfloat16(value));
  const DeviceArray<float> device_slots(slots), device_input_weight(input_weight),
      device_recurrent_weight(recurrent_weight), device_input_bias(input_bias),
      device_recurrent_bias(recurrent_bias), device_decay(decay), device_y(y);
  const DeviceArray<__nv_bfloat16> device_x(x);
  const DeviceArray<__nv_bfloat16> output(
      std::vector<__nv_bfloat16>(count * width, __float2bfloat16(NAN)));
  for (size_t r = 0; r < sizes.size(); ++r) runs[r].recurrent = device_slots.data() + r * slot;
  const DeviceArray<SequenceRun> device_runs(runs);
  const DeviceArray<int> device_row_runs(row_runs);
  const DeviceArray<Piece> device_pieces(pieces);
  const DeviceArray<int> device_first_pieces(first_pieces);
  const DeviceArray<float2> recurrences(count * width);
  const DeviceArray<float2> segments(pieces.size() * kRgLruSegments * width);

  RgLruChunkParams params;
  RgLruParams& p = params.mixer;
  p.width = static_cast<int>(width);
  p.block = block;
  p.decay_scale = 8;
  p.input_weight = device_input_weight.data();
  p.input_bias = device_input_bias.data();
  p.recurrent_weight = device_recurrent_weight.data();
  p.recurrent_bias = device_recurrent_bias.data();
  p.decay = device_decay.data();
  p.state_offset = kBefore;
  p.runs = device_runs.data();
  p.run_count = static_cast<int>(runs.size());
  p.rows = rows;
  p.row_runs = device_row_runs.data();
  p.y = device_y.data() + width;
  p.y_stride = static_cast<int>(y_stride);
  params.x = device_x.data();
  params.x_stride = static_cast<int>(x_stride);
  params.output = output.data();
  params.output_stride = static_cast<int>(width);
  params.pieces = device_pieces.data();
  params.piece_count = static_cast<int>(pieces.size());
  params.first_pieces = device_first_pieces.data();
  params.recurrences = recurrences.data();
  params.segments = segments.data();
  const Stream stream;
  LaunchRgLruChunks(params, stream.get());
  stream.Synchronize();

  // The recurrence.
  std::vector<double> expected(count * width);
  std::vector<double> expected_slots(slots.begin(), slots.end());
  const std::vector<float> of_x = Widened(x);
  for (size_t r = 0; r < sizes.size(); ++r) {
    double* states = expected_slots.data() + r * slot + kBefore;
    for (int token = 0; token < sizes[r].tokens; ++token) {
      const auto row = static_cast<size_t>(runs[r].row + token);
      for (size_t c = 0; c < width; ++c) {
        const size_t first = c / size * size;
        double input = input_bias[c];
        double recurrent = recurrent_bias[c];
        for (size_t i = 0; i < size; ++i) {
          const double from = of_x[row * x_stride + first + i];
          input += from * input_weight[(first + i) * size + c - first];
          recurrent += from * recurrent_weight[(first + i) * size + c - first];
        }
        const double a =
            std::exp(-8 * Sigmoid(recurrent) * std::log1p(std::exp(static_cast<double>(decay[c]))));
        const double factor = sizes[r].position + token == 0 ? 1 : std::sqrt(1 - a * a);
        states[c] = a * states[c] + factor * Sigmoid(input) * of_x[row * x_stride + c];
        const double of_y = y[row * y_stride + width + c];
        const double gelu = 0.5 * of_y *
                            (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) *
                                           (of_y + 0.044715 * of_y * of_y * of_y)));
        expected[row * width + c] = states[c] * gelu;
      }
    }
  }

  const std::vector<float> found = Widened(output.Download());
  const std::vector<float> found_slots = device_slots.Download();
  double worst = 0;
  for (size_t r = 0; r < sizes.size(); ++r) {
    for (int token = 0; token < sizes[r].tokens; ++token) {
      const auto row = static_cast<size_t>(runs[r].row + token);
      const double error = RelativeError(found, expected, row * width, width);
      ASSERT_LE(error, kTolerance) << "run " << r << ", token " << token;
      worst = std::max(worst, error);
    }
    const double error = RelativeError(found_slots, expected_slots, r * slot + kBefore, width);
    EXPECT_LE(error, kTolerance) << "state of run " << r;
    for (size_t i = r * slot; i < (r + 1) * slot; ++i) {
      if (i >= r * slot + kBefore && i < r * slot + kBefore + width) continue;
      ASSERT_EQ(found_slots[i], slots[i]) << "beside the state of run " << r;
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_F(RgLruChunksTest, OneRun) { Compare(3, 40, {{100, 0}}); }

TEST_F(RgLruChunksTest, RaggedRuns) {
  Compare(2, 16, {{1, 3}, {129, 0}, {2, 1}, {32, 5}, {64, 7}, {300, 9}, {65, 0}});
}

TEST_F(RgLruChunksTest, LargeHeads) { Compare(2, 256, {{70, 0}, {131, 2}}); }

// More segments than the kernel that passes states on loads ahead.
TEST_F(RgLruChunksTest, ManySegments) { Compare(1, 72, {{1200, 4}, {3, 0}}); }

}  // namespace
}  // namespace adder::cuda::test
