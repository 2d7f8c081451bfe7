#include <gtest/gtest.h>

#include "cuda/kernels/unpacked_linear.h"

namespace adder::cuda {
namespace {

TEST(ChooseUnpackedGeometry, ChoosesWhatTheKernelTakes) {
  constexpr int kSharedBytes = 226 * 1024;
  for (const bool has_norm : {false, true}) {
    const float norm_weight = 1;
    for (const int tokens : {9, 16, 100, 256}) {
      for (const int tiles : {1, 48, 211, 532, 6272}) {
        for (const int chunks : {1, 3, 12, 32, 64, 224}) {
          LinearParams p;
          p.norm_weight = has_norm ? &norm_weight : nullptr;
          p.matrix.tiles = tiles;
          p.matrix.chunks = chunks;
          p.tokens = tokens;
          UnpackedGeometry g;
          if (!ChooseUnpackedGeometry(p, 132, kSharedBytes, &g)) continue;
          EXPECT_TRUE(UnpackedTakes(p, g, kSharedBytes));
        }
      }
    }
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
