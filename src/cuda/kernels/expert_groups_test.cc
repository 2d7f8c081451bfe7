// Experts of many tokens against sums in double, in every weight format. Runs where there is a CUDA
// device.
#include "cuda/kernels/expert_groups.h"

#include <gtest/gtest.h>

#include <cmath>

#include "cuda/kernels/activated_for_test.h"
#include "cuda/kernels/bf16_rows.h"
#include "cuda/kernels/matrices_for_test.h"

namespace adder::cuda::test {
namespace {

constexpr int kExperts = 5;
constexpr int kTopK = 3;
constexpr int kHidden = 192;

struct Case {
  int tokens;
  int width;
  bool gated;
  Activation activation;
};

class ExpertGroupKernels : public testing::TestWithParam<Format> {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
  }
  static void Compare(const Case& test);
};

void ExpertGroupKernels::Compare(const Case& test) {
  // Groups of quantised weights are whole.
  const int width = GetParam().bits == 0 ? test.width : (test.width + 63) / 64 * 64;
  const Matrices up(GetParam(), kExperts, (test.gated ? 2 : 1) * width, kHidden, test.gated, 3);
  const Matrices down(GetParam(), kExperts, kHidden, width, false, 5);
  Numbers numbers(7);
  SCOPED_TRACE(testing::Message() << test.tokens << " tokens, width " << width);
  const int in_stride = Bf16Stride(kHidden);
  const int inner_stride = Bf16Stride(width);
  std::vector<__nv_bfloat16> input;
  for (int i = 0; i < test.tokens * in_stride; ++i) {
    input.push_back(__float2bfloat16(i % in_stride < kHidden ? 0.2f * numbers.Next() : 0.0f));
  }
  // Most choices are of the last expert, some are idle, and expert 1 is never chosen.
  const int pairs = test.tokens * kTopK;
  constexpr int kRoutingStride = 2 * kTopK + 2;
  std::vector<int> chosen;
  std::vector<float> routing(static_cast<size_t>(test.tokens * kRoutingStride), NAN);
  for (int pair = 0; pair < pairs; ++pair) {
    const int expert = pair % 7 == 3 ? -1 : pair % 3 == 0 ? kExperts - 1 : pair % 4 == 1 ? 2 : 0;
    chosen.push_back(expert);
    float* row = routing.data() + pair / kTopK * kRoutingStride;
    row[pair % kTopK] = expert < 0 ? 0.0f : 0.6f + 0.5f * numbers.Next();
    row[kTopK + pair % kTopK] = static_cast<float>(std::max(expert, 0));
  }
  const std::vector<float> residual =
      numbers.Vector(static_cast<size_t>(test.tokens * kHidden), 0.5f);

  const DeviceArray<__nv_bfloat16> device_input(input);
  const DeviceArray<int> device_chosen(chosen), order(static_cast<size_t>(pairs)), tile_count(1);
  const DeviceArray<ExpertTile> tiles(static_cast<size_t>(MostExpertTiles(pairs, kExperts)));
  const DeviceArray<float> device_routing(routing), output(residual);
  // What nobody writes is NaN.
  const __nv_bfloat16 nan = __float2bfloat16(NAN);
  const DeviceArray<__nv_bfloat16> inner(
      std::vector<__nv_bfloat16>(static_cast<size_t>(pairs * inner_stride), nan));
  const DeviceArray<__nv_bfloat16> rows(
      std::vector<__nv_bfloat16>(static_cast<size_t>(pairs * in_stride), nan));
  ExpertGroups groups;
  groups.tokens = test.tokens;
  groups.top_k = kTopK;
  groups.experts = kExperts;
  groups.routing = device_routing.data();
  groups.routing_stride = kRoutingStride;
  groups.chosen = device_chosen.data();
  groups.order = order.data();
  groups.tiles = tiles.data();
  groups.tile_count = tile_count.data();
  const Stream stream;
  LaunchGroupExperts(groups, stream.get());
  LaunchGroupedGateUp(groups, up.view, test.activation, device_input.data(), inner.data(),
                      stream.get());
  LaunchGroupedDown(groups, down.view, inner.data(), rows.data(), stream.get());
  LaunchCombineExperts(groups, rows.data(), 0.75f, kHidden, true, output.data(), kHidden,
                       stream.get());
  stream.Synchronize();

  const std::vector<float> x = Widened(input);
  const std::vector<float> found_inner = Widened(inner.Download());
  const std::vector<float> found = output.Download();
  std::vector<double> expected(residual.begin(), residual.end());
  for (int pair = 0; pair < pairs; ++pair) {
    const int expert = chosen[static_cast<size_t>(pair)];
    if (expert < 0) continue;
    const int token = pair / kTopK;
    std::vector<double> activated(static_cast<size_t>(pairs * inner_stride), 0);
    const size_t first = static_cast<size_t>(pair * inner_stride);
    const auto product = [&](int row) {
      double sum = 0;
      for (int col = 0; col < kHidden; ++col) {
        sum += up.at(expert, row, col) * x[static_cast<size_t>(token * in_stride + col)];
      }
      return sum;
    };
    for (int i = 0; i < width; ++i) {
      double& y = activated[first + static_cast<size_t>(i)];
      y = Activated(test.activation, product(i));
      if (test.gated) y *= product(width + i);
    }
    ASSERT_LT(RelativeError(found_inner, activated, first, static_cast<size_t>(inner_stride)), 0.02)
        << "pair " << pair;
    const float* row = routing.data() + token * kRoutingStride;
    for (int r = 0; r < kHidden; ++r) {
      double sum = 0;
      for (int i = 0; i < width; ++i) {
        sum += down.at(expert, r, i) * activated[first + static_cast<size_t>(i)];
      }
      expected[static_cast<size_t>(token * kHidden + r)] += 0.75 * row[pair % kTopK] * sum;
    }
  }
  for (int token = 0; token < test.tokens; ++token) {
    ASSERT_LT(RelativeError(found, expected, static_cast<size_t>(token * kHidden), kHidden), 0.03)
        << "token " << token;
  }
}

// Widths that tiles and units of eight divide and do not divide, of dense weights; few rows per
// expert and many.
TEST_P(ExpertGroupKernels, GatedBySilu) {
  Compare({50, 136, true, Activation::kSilu});
  Compare({80, 136, true, Activation::kSilu});
  Compare({200, 44, true, Activation::kSilu});
}
TEST_P(ExpertGroupKernels, GatedByAnother) {
  Compare({50, 44, true, Activation::kGeluTanh});
  Compare({200, 136, true, Activation::kGelu});
}
TEST_P(ExpertGroupKernels, Ungated) {
  Compare({50, 136, false, Activation::kRelu2});
  Compare({80, 43, false, Activation::kRelu2});
  Compare({200, 43, false, Activation::kRelu2});
  Compare({3, 20, false, Activation::kSigmoid});
}

INSTANTIATE_TEST_SUITE_P(Formats, ExpertGroupKernels, testing::ValuesIn(kFormats),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace adder::cuda::test
