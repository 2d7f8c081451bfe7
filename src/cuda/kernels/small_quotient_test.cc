#include "cuda/kernels/small_quotient.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace adder::cuda {
namespace {

TEST(SmallQuotient, IsExactForAllThatItPromises) {
  for (int n = 1; n <= 4096; ++n) {
    const int reciprocal = Reciprocal(n);
    const int most = std::min({(1 << kQuotientBits) / n, 256 * n - 1, 65535});
    for (int value = 0; value <= most; ++value) {
      ASSERT_EQ(Quotient(value, reciprocal), value / n) << value << " / " << n;
    }
  }
}

// The last tile of the fourth of LFM2-8B's experts, and the last block of the second of Jamba's:
// 16 bits of reciprocal would make them the first of the next.
TEST(SmallQuotient, LastTilesOfLargeExperts) {
  EXPECT_EQ(Quotient(895, Reciprocal(224)), 3);
  EXPECT_EQ(Quotient(717, Reciprocal(359)), 1);
}

}  // namespace
}  // namespace adder::cuda
