#include <gtest/gtest.h>

#include "cuda/kernels/geometry_sizes_for_test.h"
#include "cuda/kernels/unpacked_linear.h"

namespace adder::cuda {
namespace {

TEST(ChooseUnpackedGeometry, ChoosesWhatTheKernelTakes) {
  constexpr int kSharedBytes = 226 * 1024;
  for (const bool has_norm : {false, true}) {
    const float norm_weight = 1;
    LinearParams params;
    params.norm_weight = has_norm ? &norm_weight : nullptr;
    ForEachGeometrySize(params, [&](const LinearParams& p) {
      UnpackedGeometry g;
      if (!ChooseUnpackedGeometry(p, 132, kSharedBytes, &g)) return;
      EXPECT_TRUE(UnpackedTakes(p, g, kSharedBytes));
    });
  }
}

TEST(ChooseUnpackedGeometry, LeavesRoutersAndFewColumns) {
  UnpackedGeometry g;
  LinearParams p;
  p.matrix.tiles = 48;
  p.matrix.chunks = 12;
  p.tokens = 32;
  EXPECT_TRUE(ChooseUnpackedGeometry(p, 132, 226 * 1024, &g));
  p.epilogue = LinearEpilogue::kRouter;
  EXPECT_FALSE(ChooseUnpackedGeometry(p, 132, 226 * 1024, &g));
  p.epilogue = LinearEpilogue::kStore;
  p.matrix.chunks = 1;
  EXPECT_FALSE(ChooseUnpackedGeometry(p, 132, 226 * 1024, &g));
}

}  // namespace
}  // namespace adder::cuda
