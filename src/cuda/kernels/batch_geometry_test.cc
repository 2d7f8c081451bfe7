#include <gtest/gtest.h>

#include "cuda/kernels/batch_linear.h"

namespace adder::cuda {
namespace {

// Devices with less shared memory get smaller blocks, those without clusters no shared columns.
TEST(ChooseBatchGeometry, FitsSharedMemory) {
  for (const WeightFormat format : {WeightFormat::kQ4, WeightFormat::kQ8, WeightFormat::kF32}) {
    for (const int tokens : {5, 32, 128}) {
      for (const int tiles : {48, 211, 532, 6272}) {
        LinearParams p;
        p.matrix.format = format;
        p.matrix.tiles = tiles;
        p.matrix.chunks = 64;
        p.tokens = tokens;
        const BatchDevice device = {84, false, 98 * 1024};
        const BatchGeometry g = ChooseBatchGeometry(p, device);
        EXPECT_EQ(g.split, 1);
        EXPECT_LE(BatchLayout(64, LoadsOf(format) * 512, false, g).total, device.shared_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace adder::cuda
