// Quotients of small numbers without a division, for kernels whose launches know the divisor.
#pragma once

#include <cuda_runtime_api.h>

namespace adder::cuda {

inline constexpr int kQuotientBits = 24;

// 2^24 / n, rounded up: what Quotient takes for n >= 1.
constexpr int Reciprocal(int n) { return ((1 << kQuotientBits) + n - 1) / n; }

// value / n, rounded down, of n's reciprocal. Exact as long as value * n <= 2^24 and value / n <
// 256: rounding the reciprocal up adds less than n / 2^24 of `value` to the quotient, which then
// does not reach the next integer, 1 / n away.
__host__ __device__ __forceinline__ constexpr int Quotient(int value, int reciprocal) {
  return static_cast<int>(static_cast<unsigned>(value) * static_cast<unsigned>(reciprocal) >>
                          kQuotientBits);
}

}  // namespace adder::cuda
