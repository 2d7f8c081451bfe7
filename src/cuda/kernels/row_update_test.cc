// The kernel that updates rows against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/row_update.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/dtype.h"
#include "cuda/kernels/kernel_test_support.h"

namespace adder::cuda::test {
namespace {

class RowUpdate : public KernelTest {
 protected:
  static constexpr int kRows = 5;

  struct Rule {
    int width = 0;
    int groups = 0;  // 0: no norm
    bool centered = false;
    bool weight_of_group = false;
    bool weight = false;
    bool bias = false;
    bool vectors = false;  // all of them
    float scale = 1;
    float keep = 0;
    bool in_place = false;
    bool gathers = false;
  };

  static void Check(const Rule& r) {
    Numbers numbers(static_cast<uint64_t>(r.width + r.groups));
    const auto width = static_cast<size_t>(r.width);
    const int stride = r.width + 3;
    const std::vector<float> input =
        numbers.Vector(static_cast<size_t>(kRows * stride), 2, r.centered ? 30.0f : 0.0f);
    const std::vector<float> before = r.in_place ? input : numbers.Vector(input.size(), 2);
    const std::vector<float> weight =
        numbers.Vector(r.weight_of_group ? width / static_cast<size_t>(r.groups) : width);
    std::vector<float> vectors[5];  // the norm's bias, add and keep: bias, scale
    for (std::vector<float>& vector : vectors) vector = numbers.Vector(width);
    const std::vector<float> total = {0.75f};
    const std::vector<int> rows = {3, 0, 4, 1, 2};
    const DeviceArray<float> device_input(input), output(before), device_weight(weight),
        norm_bias(vectors[0]), add_bias(vectors[1]), add_scale(vectors[2]), keep_bias(vectors[3]),
        keep_scale(vectors[4]), device_total(total);
    const DeviceArray<uint16_t> rounded(static_cast<size_t>(kRows * (r.width + 8)));
    const DeviceArray<int> device_rows(rows);
    RowUpdateParams p;
    p.input = r.in_place ? output.data() : device_input.data();
    p.input_stride = stride;
    if (r.gathers) p.input_rows = device_rows.data();
    p.rows = kRows;
    p.width = r.width;
    p.norm.used = r.groups > 0;
    p.norm.groups = r.groups;
    p.norm.centered = r.centered;
    p.norm.eps = 1e-3f;
    if (r.weight) p.norm.weight = device_weight.data();
    p.norm.weight_size = static_cast<int>(weight.size());
    if (r.bias) p.norm.bias = norm_bias.data();
    p.scale = r.scale;
    p.keep = r.keep;
    if (r.vectors) {
      p.add_bias = add_bias.data();
      p.add_scale = add_scale.data();
      p.keep_bias = keep_bias.data();
      p.keep_scale = keep_scale.data();
      p.total = device_total.data();
    }
    p.output = output.data();
    p.output_stride = stride;
    p.rounded_output = rounded.data();
    p.rounded_stride = r.width + 8;
    const Stream stream;
    LaunchRowUpdate(p, stream.get());
    stream.Synchronize();
    const std::vector<float> found = output.Download();
    const std::vector<uint16_t> found_rounded = rounded.Download();
    for (int row = 0; row < kRows; ++row) {
      const float* x = input.data() + (r.gathers ? rows[static_cast<size_t>(row)] : row) * stride;
      const int size = r.groups > 0 ? r.width / r.groups : r.width;
      for (int i = 0; i < stride; ++i) {
        const auto at = static_cast<size_t>(row * stride + i);
        if (i >= r.width) {
          ASSERT_EQ(found[at], before[at]) << "row " << row << " column " << i;
          continue;
        }
        const auto column = static_cast<size_t>(i);
        double y = x[i];
        if (r.groups > 0) {
          const float* group = x + i / size * size;
          double mean = 0;
          for (int j = 0; j < size && r.centered; ++j) mean += group[j] / static_cast<double>(size);
          double squares = 0;
          for (int j = 0; j < size; ++j) squares += (group[j] - mean) * (group[j] - mean);
          y = (y - mean) / std::sqrt(squares / size + 1e-3f);
          if (r.weight) y *= weight[column % weight.size()];
          if (r.bias) y += vectors[0][column];
        }
        const auto vector = [&](int which, double absent) {
          return r.vectors ? vectors[which][column] : absent;
        };
        y = r.scale * (y + vector(1, 0)) * vector(2, 1);
        if (r.keep != 0) y += r.keep * (before[at] + vector(3, 0)) * vector(4, 1);
        if (r.vectors) y *= 0.75;
        ASSERT_NEAR(found[at], y, 1e-5 * (2 + std::abs(y)))
            << "row " << row << " column " << i << " of " << r.width;
        ASSERT_EQ(found_rounded[static_cast<size_t>(row * (r.width + 8) + i)],
                  FloatToBF16(found[at]));
      }
    }
  }
};

TEST_F(RowUpdate, CopiesAndMixesRows) {
  Check({.width = 300});
  Check({.width = 40, .vectors = true, .scale = 0.5f, .keep = -1.25f});
  Check({.width = 1000, .vectors = true, .scale = 2, .in_place = true});
  Check({.width = 77, .keep = 1, .gathers = true});
}

TEST_F(RowUpdate, NormsRows) {
  Check({.width = 600, .groups = 1, .weight = true});
  Check({.width = 96, .groups = 4, .weight_of_group = true, .weight = true, .keep = 1});
  Check({.width = 96, .groups = 4, .weight = true, .vectors = true, .scale = 0.5f, .keep = 1});
  Check({.width = 260, .groups = 1, .in_place = true});
}

TEST_F(RowUpdate, NormsLayers) {
  Check({.width = 600, .groups = 1, .centered = true, .weight = true, .bias = true});
  Check({.width = 130, .groups = 2, .centered = true, .gathers = true});
  Check({.width = 64, .groups = 1, .centered = true, .bias = true, .in_place = true});
  Check({.width = 1024, .groups = 1, .centered = true, .weight = true, .bias = true});
  Check({.width = 1100, .groups = 1, .centered = true, .weight = true, .gathers = true});
}

}  // namespace
}  // namespace adder::cuda::test
