// The matrix kernel for two to eight tokens: decoding of a few sequences.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// Most tokens for which it is the fastest.
inline constexpr int kMostFewTokens = 8;

// As LaunchLinear, for any number of tokens; the same preconditions as LaunchMatvec. Returns false,
// with nothing launched, where two rows of the input do not fit in the device's shared memory.
bool LaunchFewLinear(const LinearParams& params, const LinearShape& shape, cudaStream_t stream);

}  // namespace adder::cuda
