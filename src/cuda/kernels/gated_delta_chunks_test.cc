// The gated delta rule in chunks against the recurrence in double precision.
#include "cuda/kernels/gated_delta_chunks.h"
#include "cuda/kernels/chunk_runs_for_test.h"

#include <algorithm>

#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

// Factors of products are rounded to bf16.
constexpr double kTolerance = 0.02;

struct Sizes {
  const char* name;
  int key_heads;
  int value_heads;
  int key_dim;
  int value_dim;
  bool per_channel;
  std::vector<RunSize> runs;
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// x times `scale` over its length.
std::vector<double> OfLength(const float* x, size_t size, double eps, double scale) {
  double squares = eps;
  for (size_t i = 0; i < size; ++i) squares += static_cast<double>(x[i]) * x[i];
  std::vector<double> result(x, x + size);
  for (double& value : result) value *= scale / std::sqrt(squares);
  return result;
}

class GatedDeltaChunksTest : public KernelTest {
 protected:
  void Compare(const Sizes& sizes);
};

void GatedDeltaChunksTest::Compare(const Sizes& sizes) {
  SCOPED_TRACE(sizes.name);
  Numbers numbers(31);
  GatedDeltaParams p;
  p.key_heads = sizes.key_heads;
  p.value_heads = sizes.value_heads;
  p.key_dim = sizes.key_dim;
  p.value_dim = sizes.value_dim;
  p.decay_per_channel = sizes.per_channel;
  p.gate_sigmoid = sizes.per_channel;
  p.qk_eps = 1e-4f;
  p.query_scale = 0.4f;
  p.beta_scale = sizes.per_channel ? 1.0f : 1.8f;
  p.norm_eps = 1e-3f;
  ASSERT_TRUE(GatedDeltaChunksSupport(p.key_dim, p.value_dim));
  const auto key_dim = static_cast<size_t>(p.key_dim);
  const auto value_dim = static_cast<size_t>(p.value_dim);
  const auto heads = static_cast<size_t>(p.value_heads);
  const auto channels = static_cast<size_t>(p.conv_channels());
  const size_t width = heads * value_dim;
  const size_t head_decays = sizes.per_channel ? key_dim : 1;
  const size_t decays = heads * head_decays;
  const std::vector<float> dt_bias = numbers.Vector(decays, 1, -2);
  const std::vector<float> a = numbers.Vector(heads, 0.6f, -0.65f);
  const std::vector<float> norm = numbers.Vector(value_dim, 0.5f, 1);
  const DeviceArray<float> device_dt_bias(dt_bias), device_a(a), device_norm(norm);
  p.dt_bias = device_dt_bias.data();
  p.a = device_a.data();
  p.norm_weight = device_norm.data();

  // A slot: something else, the state.
  constexpr size_t kStateOffset = 16;
  p.state_offset = kStateOffset;
  const size_t head_floats = key_dim * value_dim;
  const size_t slot = kStateOffset + heads * head_floats;
  const size_t run_count = sizes.runs.size();
  std::vector<float> slots = numbers.Vector(run_count * slot, 0.5f);
  auto [runs, pieces, first_pieces, rows] = MakeChunkRuns(sizes.runs, slot, slots);
  const DeviceArray<float> device_slots(slots);
  for (size_t r = 0; r < run_count; ++r) runs[r].recurrent = device_slots.data() + r * slot;
  const DeviceArray<SequenceRun> device_runs(runs);
  const DeviceArray<Piece> device_pieces(pieces);
  const DeviceArray<int> device_first_pieces(first_pieces);
  const auto count = static_cast<size_t>(rows);

  // beta | decay | gate, and what the convolution made of q | k | v.
  const size_t stride = (heads + decays + width + 3) / 4 * 4;
  const std::vector<float> projected = numbers.Vector(count * stride, 2);
  std::vector<__nv_bfloat16> convolved;
  for (float value : numbers.Vector(count * channels, 1, 0.2f)) {
    convolved.push_back(__float2bfloat16(value));
  }
  const std::vector<float> qkv = Widened(convolved);
  const DeviceArray<float> device_projected(projected);
  const DeviceArray<__nv_bfloat16> device_convolved(convolved);
  const DeviceArray<__nv_bfloat16> output(
      std::vector<__nv_bfloat16>(count * width, __float2bfloat16(NAN)));
  p.runs = device_runs.data();
  p.run_count = static_cast<int>(run_count);
  p.rows = rows;
  p.beta = device_projected.data();
  p.decay = p.beta + heads;
  p.gate = p.decay + decays;
  p.beta_stride = p.decay_stride = p.gate_stride = static_cast<int>(stride);

  GatedDeltaChunkParams params;
  params.mixer = p;
  params.convolved = device_convolved.data();
  params.convolved_stride = static_cast<int>(channels);
  params.output = output.data();
  params.output_stride = static_cast<int>(width);
  params.pieces = device_pieces.data();
  params.piece_count = static_cast<int>(pieces.size());
  params.first_pieces = device_first_pieces.data();
  const size_t chunks = 2 * pieces.size() * heads;
  // What is not written must not matter.
  const DeviceArray<__nv_bfloat16> records(std::vector<__nv_bfloat16>(
      chunks * GatedDeltaRecord(p.key_dim, p.value_dim), __float2bfloat16(NAN)));
  const DeviceArray<float> keeps(chunks * kMostChunkKeyDim);
  params.records = records.data();
  params.keeps = keeps.data();
  const Stream stream;
  LaunchGatedDeltaChunks(params, stream.get());
  stream.Synchronize();

  // The recurrence, head by head.
  const std::vector<float> found = Widened(output.Download());
  const std::vector<float> found_slots = device_slots.Download();
  double worst = 0;
  for (size_t r = 0; r < run_count; ++r) {
    for (size_t h = 0; h < heads; ++h) {
      const size_t state_begin = r * slot + kStateOffset + h * head_floats;
      std::vector<double> state(
          slots.begin() + static_cast<std::ptrdiff_t>(state_begin),
          slots.begin() + static_cast<std::ptrdiff_t>(state_begin + head_floats));
      const size_t key = h / static_cast<size_t>(p.value_heads / p.key_heads) * key_dim;
      std::vector<float> of_head;
      std::vector<double> expected;
      for (int token = 0; token < sizes.runs[r].tokens; ++token) {
        const auto row = static_cast<size_t>(runs[r].row + token);
        const float* in = projected.data() + row * stride;
        const float* q_row = qkv.data() + row * channels;
        const auto keys = static_cast<size_t>(p.keys());
        const std::vector<double> q = OfLength(q_row + key, key_dim, p.qk_eps, p.query_scale);
        const std::vector<double> k = OfLength(q_row + keys + key, key_dim, p.qk_eps, 1);
        const float* v = q_row + 2 * keys + h * value_dim;
        const double beta = p.beta_scale * Sigmoid(in[h]);
        std::vector<double> decay;
        for (size_t i = h * head_decays; i < (h + 1) * head_decays; ++i) {
          decay.push_back(std::exp(
              a[h] * std::log1p(std::exp(static_cast<double>(in[heads + i]) + dt_bias[i]))));
        }
        decay.resize(key_dim, decay.front());
        std::vector<double> y(value_dim);
        double squares = 0;
        for (size_t c = 0; c < value_dim; ++c) {
          double answer = 0;
          for (size_t n = 0; n < key_dim; ++n) answer += k[n] * decay[n] * state[n * value_dim + c];
          for (size_t n = 0; n < key_dim; ++n) {
            double& element = state[n * value_dim + c];
            element = decay[n] * element + k[n] * beta * (v[c] - answer);
            y[c] += q[n] * element;
          }
          squares += y[c] * y[c];
        }
        const double size = std::sqrt(squares / static_cast<double>(value_dim) + p.norm_eps);
        for (size_t c = 0; c < value_dim; ++c) {
          const double gate = in[heads + decays + h * value_dim + c];
          expected.push_back(y[c] / size * norm[c] * Sigmoid(gate) * (p.gate_sigmoid ? 1 : gate));
          of_head.push_back(found[row * width + h * value_dim + c]);
        }
      }
      const double error = RelativeError(of_head, expected, 0, of_head.size());
      EXPECT_LE(error, kTolerance) << "run " << r << ", head " << h;
      const std::vector<float> found_state(
          found_slots.begin() + static_cast<std::ptrdiff_t>(state_begin),
          found_slots.begin() + static_cast<std::ptrdiff_t>(state_begin + head_floats));
      const double state_error = RelativeError(found_state, state, 0, head_floats);
      EXPECT_LE(state_error, kTolerance) << "state of run " << r << ", head " << h;
      worst = std::max({worst, error, state_error});
    }
    for (size_t i = r * slot; i < r * slot + kStateOffset; ++i) {
      ASSERT_EQ(found_slots[i], slots[i]) << "in front of the state of run " << r;
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_F(GatedDeltaChunksTest, OneChunk) { Compare({"one", 2, 4, 128, 128, false, {{50, 0}}}); }
TEST_F(GatedDeltaChunksTest, ChunksWithHistory) {
  Compare({"chunks", 2, 2, 128, 128, false, {{400, 5}}});
  Compare({"whole chunks", 1, 2, 64, 64, true, {{256, 1000}}});
  Compare({"per channel", 2, 2, 128, 128, true, {{400, 5}}});
}
TEST_F(GatedDeltaChunksTest, RaggedRuns) {
  Compare(
      {"ragged", 2, 4, 128, 128, false, {{1, 3}, {129, 0}, {2, 1}, {64, 77}, {300, 9}, {65, 0}}});
  Compare({"ragged, per channel",
           2,
           4,
           128,
           128,
           true,
           {{1, 3}, {129, 0}, {2, 1}, {64, 77}, {300, 9}, {65, 0}}});
}
TEST_F(GatedDeltaChunksTest, OddSizes) {
  Compare({"small heads", 2, 4, 16, 16, false, {{70, 0}, {131, 2}}});
  Compare({"long values", 2, 2, 96, 192, true, {{140, 6}}});
  Compare({"longest values", 1, 2, 40, 256, false, {{140, 6}}});
  Compare({"values of odd size", 2, 2, 72, 88, false, {{140, 6}}});
  Compare({"small heads, per channel", 2, 4, 16, 16, true, {{70, 0}, {131, 2}}});
}

}  // namespace
}  // namespace adder::cuda::test
