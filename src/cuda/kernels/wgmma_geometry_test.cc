#include <gtest/gtest.h>

#include "cuda/kernels/geometry_sizes_for_test.h"
#include "cuda/kernels/wgmma_linear.h"

namespace adder::cuda {
namespace {

TEST(ChooseWgmmaGeometry, ChoosesWhatTheKernelTakes) {
  constexpr int kSharedBytes = 226 * 1024;
  for (const WeightFormat format : {WeightFormat::kQ4, WeightFormat::kQ8, WeightFormat::kBf16}) {
    LinearParams params;
    params.matrix.format = format;
    ForEachGeometrySize(params, [&](const LinearParams& p) {
      WgmmaGeometry g;
      if (!ChooseWgmmaGeometry(p, 132, kSharedBytes, &g)) return;
      EXPECT_TRUE(WgmmaTakes(p, g, kSharedBytes));
    });
  }
}

TEST(ChooseWgmmaGeometry, LeavesOtherFormatsAndRouters) {
  WgmmaGeometry g;
  LinearParams p;
  p.matrix.tiles = 48;
  p.matrix.chunks = 12;
  p.tokens = 32;
  EXPECT_TRUE(ChooseWgmmaGeometry(p, 132, 226 * 1024, &g));
  p.epilogue = LinearEpilogue::kRouter;
  EXPECT_FALSE(ChooseWgmmaGeometry(p, 132, 226 * 1024, &g));
  p.epilogue = LinearEpilogue::kStore;
  p.matrix.format = WeightFormat::kF32;
  EXPECT_FALSE(ChooseWgmmaGeometry(p, 132, 226 * 1024, &g));
}

}  // namespace
}  // namespace adder::cuda
