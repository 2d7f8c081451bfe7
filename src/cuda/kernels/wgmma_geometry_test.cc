#include <gtest/gtest.h>

#include "cuda/kernels/wgmma_linear.h"

namespace adder::cuda {
namespace {

TEST(ChooseWgmmaGeometry, ChoosesWhatTheKernelTakes) {
  constexpr int kSharedBytes = 226 * 1024;
  for (const WeightFormat format : {WeightFormat::kQ4, WeightFormat::kQ8, WeightFormat::kBf16}) {
    for (const int tokens : {9, 16, 100, 256}) {
      for (const int tiles : {1, 48, 211, 532, 6272}) {
        for (const int chunks : {1, 3, 12, 32, 64, 224}) {
          LinearParams p;
          p.matrix.format = format;
          p.matrix.tiles = tiles;
          p.matrix.chunks = chunks;
          p.tokens = tokens;
          WgmmaGeometry g;
          if (!ChooseWgmmaGeometry(p, 132, kSharedBytes, &g)) continue;
          EXPECT_TRUE(WgmmaTakes(p, g, kSharedBytes));
        }
      }
    }
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
