// Norms of queries and keys, before attention.
#pragma once

#include "cuda/kernels/attention.h"

namespace adder::cuda {

// Norms q and k of params.qkv in place, as params.q_norm and params.k_norm say, after rotating both
// where the norms come after the rotation. What attention has to do then: the same without norms,
// and in that case without a rotation.
AttentionParams LaunchQkNorm(const AttentionParams& params, cudaStream_t stream);

}  // namespace adder::cuda
