// The Mamba-1 scan over segments against the recurrence, token by token, in double precision: every
// run for itself, so that a mix-up of runs, pieces or segments shows.
#include "cuda/kernels/mamba1_chunks.h"

#include <algorithm>

#include "cuda/kernels/chunk_runs_for_test.h"
#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

// The output is bf16, states are f32.
constexpr double kTolerance = 0.005;
constexpr double kStateTolerance = 2e-5;

double Silu(double x) { return x / (1 + std::exp(-x)); }

class Mamba1ChunksTest : public KernelTest {
 protected:
  void Compare(int inner, int d_state, bool norms, const std::vector<RunSize>& sizes);
};

void Mamba1ChunksTest::Compare(int inner, int d_state, bool norms,
                               const std::vector<RunSize>& sizes) {
  SCOPED_TRACE(testing::Message() << inner << " channels, state " << d_state);
  Numbers numbers(29);
  const auto channels = static_cast<size_t>(inner);
  const auto states = static_cast<size_t>(d_state);
  // A slot: something before, the state, something behind.
  constexpr size_t kBefore = 20;
  const size_t slot = kBefore + states * channels + 3;
  std::vector<float> slots = numbers.Vector(sizes.size() * slot);
  auto [runs, pieces, first_pieces, rows] = MakeChunkRuns(sizes, slot, slots);
  const auto count = static_cast<size_t>(rows);
  const std::vector<float> a = numbers.Vector(states * channels, 1.5f, -1.6f);
  const std::vector<float> d = numbers.Vector(channels);
  const std::vector<float> dt_bias = numbers.Vector(channels, 0.5f, -1);
  const std::vector<float> b_weight = numbers.Vector(states, 0.5f, 1);
  // Rows of different widths, each with something behind its values.
  const size_t b_c_stride = 2 * states + 3;
  const size_t dt_stride = channels + 4;
  const size_t z_stride = 2 * channels + 4;
  const size_t x_stride = channels + 8;
  const size_t output_stride = (channels + 7) / 8 * 8;
  const std::vector<float> b_c = numbers.Vector(count * b_c_stride, 1.5f);
  const std::vector<float> dt = numbers.Vector(count * dt_stride, 2);
  const std::vector<float> z = numbers.Vector(count * z_stride, 2);
  std::vector<__nv_bfloat16> x;
  for (float value : numbers.Vector(count * x_stride)) x.push_back(__float2bfloat16(value));
  const DeviceArray<float> device_slots(slots), device_a(a), device_d(d), device_dt_bias(dt_bias),
      device_b_weight(b_weight), device_b_c(b_c), device_dt(dt), device_z(z);
  const DeviceArray<__nv_bfloat16> device_x(x);
  const DeviceArray<__nv_bfloat16> output(
      std::vector<__nv_bfloat16>(count * output_stride, __float2bfloat16(NAN)));
  for (size_t r = 0; r < sizes.size(); ++r) runs[r].recurrent = device_slots.data() + r * slot;
  const DeviceArray<SequenceRun> device_runs(runs);
  const DeviceArray<Piece> device_pieces(pieces);
  const DeviceArray<int> device_first_pieces(first_pieces);
  const size_t segments = pieces.size() * kMamba1Segments;
  const DeviceArray<float> scratch(segments * states * channels);
  const DeviceArray<float> sums(segments * channels);

  Mamba1ChunkParams params;
  Mamba1Params& p = params.mixer;
  p.inner = inner;
  p.d_state = d_state;
  p.a = device_a.data();
  p.d = device_d.data();
  if (norms) {
    p.b_norm = {true, device_b_weight.data(), 0.01f};
    p.c_norm = {true, nullptr, 0.03f};
  }
  p.ssm_offset = kBefore;
  p.runs = device_runs.data();
  p.run_count = static_cast<int>(runs.size());
  p.b_c = device_b_c.data();
  p.b_c_stride = static_cast<int>(b_c_stride);
  p.dt = device_dt.data();
  p.dt_stride = static_cast<int>(dt_stride);
  p.z = device_z.data();
  p.z_stride = static_cast<int>(z_stride);
  params.dt_bias = device_dt_bias.data();
  params.x = device_x.data();
  params.x_stride = static_cast<int>(x_stride);
  params.output = output.data();
  params.output_stride = static_cast<int>(output_stride);
  params.pieces = device_pieces.data();
  params.piece_count = static_cast<int>(pieces.size());
  params.first_pieces = device_first_pieces.data();
  params.states = scratch.data();
  params.sums = sums.data();
  const Stream stream;
  LaunchMamba1Chunks(params, stream.get());
  stream.Synchronize();

  // The recurrence.
  std::vector<double> expected(count * output_stride);
  std::vector<double> expected_slots(slots.begin(), slots.end());
  for (size_t r = 0; r < sizes.size(); ++r) {
    double* h = expected_slots.data() + r * slot + kBefore;
    for (int token = 0; token < sizes[r].tokens; ++token) {
      const auto row = static_cast<size_t>(runs[r].row + token);
      const auto normed = [&](size_t from, const SmallNorm& norm,
                              const std::vector<float>* weight) {
        const float* of = b_c.data() + row * b_c_stride + from;
        double squares = 0;
        for (size_t n = 0; n < states; ++n) squares += static_cast<double>(of[n]) * of[n];
        std::vector<double> result(of, of + states);
        for (size_t n = 0; norm.used && n < states; ++n) {
          result[n] *= (weight != nullptr ? (*weight)[n] : 1.0f) /
                       std::sqrt(squares / d_state + static_cast<double>(norm.eps));
        }
        return result;
      };
      const std::vector<double> b = normed(0, p.b_norm, &b_weight);
      const std::vector<double> c = normed(states, p.c_norm, nullptr);
      for (size_t channel = 0; channel < channels; ++channel) {
        const double step = std::log1p(
            std::exp(static_cast<double>(dt[row * dt_stride + channel]) + dt_bias[channel]));
        const double of_x = __bfloat162float(x[row * x_stride + channel]);
        double y = d[channel] * of_x;
        for (size_t n = 0; n < states; ++n) {
          double& state = h[n * channels + channel];
          state = std::exp(step * a[n * channels + channel]) * state + step * b[n] * of_x;
          y += c[n] * state;
        }
        expected[row * output_stride + channel] = y * Silu(z[row * z_stride + channel]);
      }
    }
  }

  const std::vector<float> found = Widened(output.Download());
  const std::vector<float> found_slots = device_slots.Download();
  double worst = 0;
  for (size_t r = 0; r < sizes.size(); ++r) {
    for (int token = 0; token < sizes[r].tokens; ++token) {
      const auto row = static_cast<size_t>(runs[r].row + token);
      const double error = RelativeError(found, expected, row * output_stride, channels);
      ASSERT_LE(error, kTolerance) << "run " << r << ", token " << token;
      worst = std::max(worst, error);
      for (size_t i = channels; i < output_stride; ++i) {
        ASSERT_EQ(found[row * output_stride + i], 0) << "padding of row " << row;
      }
    }
    const size_t begin = r * slot + kBefore;
    const double error = RelativeError(found_slots, expected_slots, begin, states * channels);
    EXPECT_LE(error, kStateTolerance) << "state of run " << r;
    for (size_t i = r * slot; i < (r + 1) * slot; ++i) {
      if (i >= begin && i < begin + states * channels) continue;
      ASSERT_EQ(found_slots[i], slots[i]) << "beside the state of run " << r;
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_F(Mamba1ChunksTest, OneRun) { Compare(200, 16, false, {{100, 0}}); }

TEST_F(Mamba1ChunksTest, RaggedRuns) {
  const std::vector<RunSize> runs{{1, 3}, {129, 0}, {2, 1}, {32, 5}, {64, 7}, {300, 9}, {65, 0}};
  Compare(68, 16, false, runs);
  Compare(132, 8, true, runs);
}

TEST_F(Mamba1ChunksTest, LargeStates) {
  for (const int d_state : {24, 32, 64}) Compare(72, d_state, true, {{70, 0}, {131, 2}});
}

// More segments than the kernel that passes states on loads ahead.
TEST_F(Mamba1ChunksTest, ManySegments) { Compare(64, 16, false, {{1200, 4}, {3, 0}}); }

}  // namespace
}  // namespace adder::cuda::test
