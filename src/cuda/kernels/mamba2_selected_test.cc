// The Mamba-2 step behind a selection against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/mamba2_selected.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "cuda/kernels/kernel_test_support.h"
#include "cuda/kernels/stored_states_for_test.h"

namespace adder::cuda::test {
namespace {

struct Sizes {
  int heads;
  int head_dim;
  int d_state;
  int groups;
  int dt_rank;
  bool norms;
  bool has_offset;
  DType dtype = DType::kF32;
};

class Mamba2SelectedKernels : public KernelTest {
 protected:
  static void Check(const Sizes& s);
};

void Mamba2SelectedKernels::Check(const Sizes& s) {
  // Sequences in another order than their rows.
  constexpr int kRowOf[] = {1, 0};
  constexpr int kRows = 2;
  constexpr float kEps[] = {0.01f, 0.03f, 0.02f};  // of the norms of B, C and dt
  const int inner = s.heads * s.head_dim;
  const int states = s.groups * s.d_state;
  Mamba2SelectedParams p;
  Mamba2Params& scan = p.scan;
  scan.heads = s.heads;
  scan.head_dim = s.head_dim;
  scan.d_state = s.d_state;
  scan.groups = s.groups;
  scan.d_conv = 1;
  scan.dt_min = 0.01f;
  scan.dt_max = 2;
  scan.ssm_offset = 64;
  scan.run_count = kRows;
  // Rows with something behind their values.
  scan.projected_stride = 2 * inner + 4;
  scan.output_stride = inner + 3;
  scan.rounded_output_stride = inner + 8;
  p.x_stride = inner + 5;
  p.selected_stride = 2 * states + s.dt_rank + 7;
  p.dt_rank = s.dt_rank;
  const int slot = 64 + (inner * s.d_state + 3) / 4 * 4 + 8;
  Numbers numbers(41);
  const auto rows = [&](int stride) {
    return numbers.Vector(static_cast<size_t>(kRows * stride), 1.5f);
  };
  const auto per_head = [&](float scale, float offset) {
    return numbers.Vector(static_cast<size_t>(s.heads), scale, offset);
  };
  scan.ssm_dtype = s.dtype;
  const StatesInSlots states_in_slots{static_cast<size_t>(slot), 64,
                                      static_cast<size_t>(inner * s.d_state), s.dtype};
  const std::vector<float> x = rows(p.x_stride), projected = rows(scan.projected_stride),
                           selected = rows(p.selected_stride),
                           packed = states_in_slots.Packed(rows(slot)),
                           slots = states_in_slots.Widened(packed), dt_bias = per_head(1, 0),
                           a = per_head(1.5f, -1.6f), d = per_head(1, 0),
                           offset = per_head(1, 0.5f);
  const std::vector<float> dt_rows = numbers.Vector(static_cast<size_t>(s.heads * s.dt_rank), 0.3f);
  const int sizes[] = {states, states, s.dt_rank};
  std::vector<float> weights[3];
  for (int i = 0; i < 3; ++i) {
    weights[i] = numbers.Vector(static_cast<size_t>(sizes[i]), 0.5f, 1);
  }
  const DeviceArray<float> device_x(x), device_projected(projected), device_selected(selected),
      device_slots(packed), device_dt_bias(dt_bias), device_a(a), device_d(d),
      device_offset(offset), device_rows(dt_rows), b_weight(weights[0]), c_weight(weights[1]),
      dt_weight(weights[2]);
  const DeviceArray<float> output(static_cast<size_t>(kRows * scan.output_stride));
  const DeviceArray<uint16_t> rounded(static_cast<size_t>(kRows * scan.rounded_output_stride));
  std::vector<SequenceRun> runs;
  for (int i = 0; i < kRows; ++i) {
    runs.push_back({device_slots.data() + i * slot, nullptr, 5 + i, kRowOf[i], 1, 0});
  }
  const DeviceArray<SequenceRun> device_runs(runs);
  scan.runs = device_runs.data();
  scan.dt_bias = device_dt_bias.data();
  scan.a = device_a.data();
  scan.d = device_d.data();
  scan.projected = device_projected.data();
  scan.output = output.data();
  scan.rounded_output = rounded.data();
  p.x = device_x.data();
  p.selected = device_selected.data();
  p.dt_rows = device_rows.data();
  if (s.has_offset) p.dt_offset = device_offset.data();
  if (s.norms) {
    p.b_norm = {true, b_weight.data(), kEps[0]};
    p.c_norm = {true, c_weight.data(), kEps[1]};
    p.dt_norm = {true, dt_weight.data(), kEps[2]};
  }
  const Stream stream;
  LaunchMamba2SelectedStep(p, stream.get());
  stream.Synchronize();

  const std::vector<float> found = output.Download();
  const std::vector<float> found_packed = device_slots.Download();
  EXPECT_EQ(states_in_slots.Behind(found_packed), states_in_slots.Behind(packed));
  const std::vector<float> found_slots = states_in_slots.Widened(found_packed);
  const std::vector<uint16_t> found_rounded = rounded.Download();
  std::vector<double> expected_slots(slots.begin(), slots.end());
  for (int i = 0; i < kRows; ++i) {
    const int row = kRowOf[i];
    // B, C and dt.
    std::vector<double> parts[3];
    const float* from = selected.data() + row * p.selected_stride;
    for (int part = 0; part < 3; from += sizes[part], ++part) {
      double squares = 0;
      for (int n = 0; n < sizes[part]; ++n) squares += double{from[n]} * from[n];
      for (int n = 0; n < sizes[part]; ++n) {
        parts[part].push_back(s.norms ? from[n] * weights[part][static_cast<size_t>(n)] /
                                            std::sqrt(squares / sizes[part] + kEps[part])
                                      : from[n]);
      }
    }
    for (int head = 0; head < s.heads; ++head) {
      const auto h = static_cast<size_t>(head);
      double dt = dt_bias[h] + (s.has_offset ? offset[h] : 0.0f);
      for (int r = 0; r < s.dt_rank; ++r) {
        dt += dt_rows[static_cast<size_t>(head * s.dt_rank + r)] * parts[2][static_cast<size_t>(r)];
      }
      dt = std::min(std::max(std::log1p(std::exp(dt)), double{scan.dt_min}), double{scan.dt_max});
      const int first = head / (s.heads / s.groups) * s.d_state;
      for (int channel = 0; channel < s.head_dim; ++channel) {
        const int at = head * s.head_dim + channel;
        const double of_x = x[static_cast<size_t>(row * p.x_stride + at)];
        double y = d[h] * of_x;
        for (int n = 0; n < s.d_state; ++n) {
          double& state = expected_slots[static_cast<size_t>(
              i * slot + 64 + (head * s.d_state + n) * s.head_dim + channel)];
          state =
              std::exp(dt * a[h]) * state + dt * parts[0][static_cast<size_t>(first + n)] * of_x;
          y += parts[1][static_cast<size_t>(first + n)] * state;
        }
        const double z = projected[static_cast<size_t>(row * scan.projected_stride + at)];
        y *= z / (1 + std::exp(-z));
        const float result = found[static_cast<size_t>(row * scan.output_stride + at)];
        ASSERT_NEAR(result, y, 2e-4 * (1 + std::abs(y))) << "row " << row << " channel " << at;
        ASSERT_EQ(found_rounded[static_cast<size_t>(row * scan.rounded_output_stride + at)],
                  FloatToBF16(result));
      }
    }
  }
  for (size_t i = 0; i < slots.size(); ++i) {
    const size_t at = i % states_in_slots.slot - states_in_slots.offset;
    const double room =
        at < states_in_slots.count ? states_in_slots.HalfStep(expected_slots[i]) : 0;
    ASSERT_NEAR(found_slots[i], expected_slots[i], room + 1e-4 * (1 + std::abs(expected_slots[i])))
        << i;
  }
}

TEST_F(Mamba2SelectedKernels, Step) {
  Check({4, 128, 64, 1, 128, true, false});
  Check({6, 40, 48, 2, 20, true, true});
  Check({2, 30, 16, 1, 8, false, true});
  Check({4, 128, 64, 1, 128, true, false, DType::kF16});
  Check({2, 30, 16, 1, 8, false, true, DType::kBF16});
}

}  // namespace
}  // namespace adder::cuda::test
