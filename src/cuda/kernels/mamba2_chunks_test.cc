// The chunked scan against the recurrence, token by token, in double precision: every head and run
// for itself, so that a mix-up of channels, heads, groups, runs or pieces shows.
#include "cuda/kernels/mamba2_chunks.h"
#include "cuda/kernels/chunk_runs_for_test.h"

#include <algorithm>
#include <limits>

#include "cuda/kernels/kernel_test_support.h"
#include "cuda/kernels/stored_states_for_test.h"

namespace adder::cuda::test {
namespace {

// x, B, C, weights of products and states enter products as bf16, which errs by 2^-9 each.
// Measured: up to 0.005.
constexpr double kTolerance = 0.015;

// Where x, B, C and dt come from.
enum class Inputs {
  kProjected,  // one row, through the convolution
  kSelected,   // rows of their own, dt before its bias
  kLightning,  // one row of C | B | x per head; dt is 1, decays are slopes, no gate, no skip
};

struct Case {
  const char* name;
  int heads;
  int head_dim;
  int d_state;
  int groups;
  int d_conv;
  std::vector<RunSize> runs;
  Inputs inputs = Inputs::kProjected;
  DType dtype = DType::kF32;
};

double Silu(double x) { return x / (1 + std::exp(-x)); }

class Mamba2ChunksTest : public KernelTest {
 protected:
  void Compare(const Case& sizes);
};

void Mamba2ChunksTest::Compare(const Case& sizes) {
  SCOPED_TRACE(sizes.name);
  Numbers numbers(17);
  Mamba2Params p;
  p.heads = sizes.heads;
  p.head_dim = sizes.head_dim;
  p.d_state = sizes.d_state;
  p.groups = sizes.groups;
  p.d_conv = sizes.d_conv;
  p.dt_min = 0.01f;
  p.dt_max = 0.9f;
  const auto channels = static_cast<size_t>(p.conv_channels());
  const auto inner = static_cast<size_t>(p.inner());
  const auto heads = static_cast<size_t>(p.heads);
  const auto head_dim = static_cast<size_t>(p.head_dim);
  const auto d_state = static_cast<size_t>(p.d_state);
  const auto taps = static_cast<size_t>(p.d_conv);
  const std::vector<float> conv_weight = numbers.Vector(taps * channels, 0.6f);
  const std::vector<float> conv_bias = numbers.Vector(channels, 0.3f);
  const std::vector<float> dt_bias = numbers.Vector(heads, 1, -1.5f);
  const std::vector<float> a = numbers.Vector(heads, 1.5f, -2);
  const std::vector<float> d = numbers.Vector(heads);
  const DeviceArray<float> device_conv_weight(conv_weight);
  const DeviceArray<float> device_conv_bias(conv_bias);
  const DeviceArray<float> device_dt_bias(dt_bias);
  const DeviceArray<float> device_a(a);
  const DeviceArray<float> device_d(d);
  p.conv_weight = device_conv_weight.data();
  p.conv_bias = device_conv_bias.data();
  p.dt_bias = device_dt_bias.data();
  p.a = device_a.data();
  p.d = device_d.data();

  // A slot: the ring, something in between, the state.
  const size_t ssm_offset = taps * channels + 12;
  const size_t slot = ssm_offset + heads * d_state * head_dim;
  p.ssm_offset = static_cast<long long>(ssm_offset);
  const size_t run_count = sizes.runs.size();
  std::vector<float> slots = numbers.Vector(run_count * slot);
  auto [runs, pieces, first_pieces, rows] = MakeChunkRuns(sizes.runs, slot, slots);
  p.ssm_dtype = sizes.dtype;
  const StatesInSlots states_in_slots{slot, ssm_offset, heads * d_state * head_dim, sizes.dtype};
  const std::vector<float> packed = states_in_slots.Packed(slots);
  slots = states_in_slots.Widened(packed);
  const DeviceArray<float> device_slots(packed);
  for (size_t r = 0; r < run_count; ++r) runs[r].recurrent = device_slots.data() + r * slot;
  const DeviceArray<SequenceRun> device_runs(runs);
  const DeviceArray<Piece> device_pieces(pieces);
  const DeviceArray<int> device_first_pieces(first_pieces);
  const size_t stride = inner + channels + heads + (4 - (inner + channels + heads) % 4) % 4;
  const auto count = static_cast<size_t>(rows);
  const std::vector<float> projected = numbers.Vector(count * stride, 1.5f);
  const DeviceArray<float> device_projected(projected);
  const DeviceArray<__nv_bfloat16> output(
      std::vector<__nv_bfloat16>(count * inner, __float2bfloat16(NAN)));
  p.runs = device_runs.data();
  p.run_count = static_cast<int>(run_count);
  p.projected = device_projected.data();
  p.projected_stride = static_cast<int>(stride);

  Mamba2ChunkParams params;
  params.mixer = p;
  params.rows = rows;
  params.output = output.data();
  params.output_stride = static_cast<int>(inner);
  params.pieces = device_pieces.data();
  params.piece_count = static_cast<int>(pieces.size());
  params.first_pieces = device_first_pieces.data();
  const size_t states = pieces.size() * heads * d_state * head_dim;
  const DeviceMemory convolved(count * channels * sizeof(__nv_bfloat16));
  const DeviceMemory steps(count * heads * sizeof(float2));
  const DeviceMemory added(states * sizeof(float));
  const DeviceMemory before(states * sizeof(__nv_bfloat16));
  params.convolved = convolved.as<__nv_bfloat16>();
  // Of the other kinds of inputs: x | B | C of a row, as they lie there.
  const bool lightning = sizes.inputs == Inputs::kLightning;
  const auto given_stride = channels + 8;
  std::vector<__nv_bfloat16> given;
  for (float value : numbers.Vector(count * given_stride)) given.push_back(__float2bfloat16(value));
  const DeviceArray<__nv_bfloat16> device_given(given);
  const std::vector<float> dt_rows = numbers.Vector(count * (heads + 3), 1.5f);
  const DeviceArray<float> device_dt_rows(dt_rows);
  const std::vector<float> slopes = numbers.Vector(heads, 0.4f, 0.5f);
  const DeviceArray<float> device_slopes(slopes);
  if (sizes.inputs != Inputs::kProjected) {
    params.convolved = nullptr;
    params.x = device_given.data() + (lightning ? 2 * d_state : 0);
    params.b = device_given.data() + (lightning ? d_state : inner);
    params.c = lightning ? device_given.data() : params.b + p.groups * p.d_state;
    params.x_stride = params.b_c_stride = static_cast<int>(given_stride);
    params.x_step = lightning ? 3 * p.d_state : p.head_dim;
    params.b_c_step = lightning ? 3 * p.d_state : p.d_state;
    params.mixer.dt = device_dt_rows.data();
    params.mixer.dt_stride = static_cast<int>(heads + 3);
  }
  if (lightning) {
    params.slopes = device_slopes.data();
    params.mixer.gates = false;
    params.mixer.d = params.mixer.a = params.mixer.dt_bias = params.mixer.dt = nullptr;
    params.mixer.projected = nullptr;
  }
  params.steps = steps.as<float2>();
  params.added = added.as<float>();
  params.before = before.as<__nv_bfloat16>();
  const Stream stream;
  LaunchMamba2Chunks(params, 132, stream.get());
  stream.Synchronize();

  // The recurrence.
  std::vector<double> expected(count * inner);
  std::vector<double> expected_slots(slots.begin(), slots.end());
  for (size_t r = 0; r < run_count; ++r) {
    double* ring = expected_slots.data() + r * slot;
    double* states_of_run = ring + ssm_offset;
    for (int token = 0; token < sizes.runs[r].tokens; ++token) {
      const auto row = static_cast<size_t>(runs[r].row + token);
      const float* in = projected.data() + row * stride;
      const auto position = static_cast<size_t>(sizes.runs[r].position + token);
      std::vector<double> conv(channels);
      for (size_t channel = 0; channel < channels; ++channel) {
        if (taps > 1) ring[position % taps * channels + channel] = in[inner + channel];
        double sum = conv_bias[channel];
        for (size_t tap = 0; tap < taps; ++tap) {
          const double input = taps == 1 ? static_cast<double>(in[inner + channel])
                                         : ring[(position + 1 + tap) % taps * channels + channel];
          sum += conv_weight[tap * channels + channel] * input;
        }
        conv[channel] = Silu(sum);
        if (sizes.inputs == Inputs::kProjected) continue;
        size_t from = channel;
        if (lightning && channel < inner) {
          from = (channel / head_dim * 3 + 2) * d_state + channel % head_dim;
        } else if (lightning) {
          const size_t in_b_c = channel - inner;  // B of all groups, then C
          const size_t group = in_b_c / d_state % heads;
          from = (group * 3 + (in_b_c < heads * d_state ? 1 : 0)) * d_state + in_b_c % d_state;
        }
        conv[channel] = __bfloat162float(given[row * given_stride + from]);
      }
      for (size_t h = 0; h < heads; ++h) {
        const size_t group = h / (heads / static_cast<size_t>(p.groups));
        const double* b = conv.data() + inner + group * d_state;
        const double* c = b + static_cast<size_t>(p.groups) * d_state;
        const bool projects = sizes.inputs == Inputs::kProjected;
        const double raw =
            (projects ? in[inner + channels + h] : dt_rows[row * (heads + 3) + h]) + dt_bias[h];
        const double dt = lightning
                              ? 1
                              : std::clamp(std::log1p(std::exp(raw)), static_cast<double>(p.dt_min),
                                           static_cast<double>(p.dt_max));
        const double decay = std::exp(lightning ? -slopes[h] : dt * a[h]);
        for (size_t i = 0; i < head_dim; ++i) {
          const double x = conv[h * head_dim + i];
          double y = lightning ? 0 : d[h] * x;
          for (size_t n = 0; n < d_state; ++n) {
            double& state = states_of_run[(h * d_state + n) * head_dim + i];
            state = decay * state + dt * b[n] * x;
            y += c[n] * state;
          }
          expected[row * inner + h * head_dim + i] = lightning ? y : y * Silu(in[h * head_dim + i]);
        }
      }
    }
  }

  const std::vector<float> found = Widened(output.Download());
  const std::vector<float> found_packed = device_slots.Download();
  EXPECT_EQ(states_in_slots.Behind(found_packed), states_in_slots.Behind(packed));
  const std::vector<float> found_slots = states_in_slots.Widened(found_packed);
  double worst = 0;
  for (size_t r = 0; r < run_count; ++r) {
    for (size_t h = 0; h < heads; ++h) {
      // The head's channels of all rows of the run.
      std::vector<float> of_head;
      std::vector<double> of_head_expected;
      for (int token = 0; token < sizes.runs[r].tokens; ++token) {
        const size_t from = static_cast<size_t>(runs[r].row + token) * inner + h * head_dim;
        for (size_t i = from; i < from + head_dim; ++i) {
          of_head.push_back(found[i]);
          of_head_expected.push_back(expected[i]);
        }
      }
      const double error = RelativeError(of_head, of_head_expected, 0, of_head.size());
      EXPECT_LE(error, kTolerance) << "run " << r << ", head " << h;
      const double state_error =
          RelativeError(found_slots, expected_slots, r * slot + ssm_offset + h * d_state * head_dim,
                        d_state * head_dim);
      EXPECT_LE(state_error, kTolerance) << "state of run " << r << ", head " << h;
      worst = std::max({worst, error, state_error});
    }
    for (size_t i = r * slot; i < r * slot + ssm_offset; ++i) {
      ASSERT_EQ(found_slots[i], static_cast<float>(expected_slots[i])) << "window of run " << r;
    }
  }
  RecordProperty("worst", std::to_string(worst));
}

TEST_F(Mamba2ChunksTest, OnePiece) { Compare({"one piece", 6, 32, 128, 1, 4, {{100, 0}}}); }

TEST_F(Mamba2ChunksTest, PiecesWithHistory) {
  Compare({"pieces", 4, 64, 128, 1, 4, {{400, 5}}});
  Compare({"whole pieces", 4, 32, 128, 1, 4, {{256, 1000}}});
}

TEST_F(Mamba2ChunksTest, RaggedRuns) {
  Compare({"ragged", 6, 32, 128, 2, 4, {{1, 3}, {129, 0}, {2, 1}, {64, 77}, {300, 9}, {65, 0}}});
}

TEST_F(Mamba2ChunksTest, OddSizes) {
  Compare({"small head", 4, 8, 24, 2, 3, {{70, 0}, {131, 2}}});
  Compare({"head in parts", 3, 80, 96, 1, 4, {{140, 6}}});
  Compare({"wide head", 2, 128, 256, 1, 2, {{140, 6}}});
  Compare({"large state", 4, 32, 256, 2, 4, {{200, 0}}});
  Compare({"long window", 4, 32, 64, 1, 8, {{20, 3}, {150, 0}}});
  Compare({"no window", 4, 16, 64, 1, 1, {{20, 3}, {150, 0}}});
}

TEST_F(Mamba2ChunksTest, SelectedInputs) {
  const std::vector<RunSize> runs{{1, 3}, {129, 0}, {2, 1}, {300, 9}};
  Compare({"one group", 6, 16, 24, 1, 1, runs, Inputs::kSelected});
  Compare({"heads in parts", 4, 128, 64, 2, 1, runs, Inputs::kSelected});
}

TEST_F(Mamba2ChunksTest, Lightning) {
  const std::vector<RunSize> runs{{1, 3}, {129, 0}, {2, 1}, {300, 9}};
  Compare({"small heads", 4, 16, 16, 4, 1, runs, Inputs::kLightning});
  Compare({"large heads", 3, 128, 128, 3, 1, runs, Inputs::kLightning});
}

TEST_F(Mamba2ChunksTest, NarrowStates) {
  Compare({"f16", 6, 32, 128, 2, 4, {{1, 3}, {129, 0}, {300, 9}}, Inputs::kProjected, DType::kF16});
  Compare({"bf16", 3, 80, 96, 1, 4, {{140, 6}, {20, 0}}, Inputs::kProjected, DType::kBF16});
}

// Enough pieces for blocks to take several heads.
TEST_F(Mamba2ChunksTest, ManyPieces) { Compare({"many", 48, 32, 128, 1, 4, {{2500, 0}}}); }

}  // namespace
}  // namespace adder::cuda::test
