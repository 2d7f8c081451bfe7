// The output gate of attention.
#pragma once

#include "cuda/kernels/attention.h"

namespace adder::cuda {

// sigmoid of a row's gate for element `at` of its output. Needs p.output_gate. kExact: as accurate
// as f32 is.
template <bool kExact = false>
__device__ __forceinline__ float OutputGate(const AttentionParams& p, long long row, int at) {
  const float gate = p.qkv[row * p.qkv_stride + (p.heads + 2 * p.kv_heads) * p.head_dim + at];
  return kExact ? 1.0f / (1.0f + expf(-gate)) : __fdividef(1.0f, 1.0f + __expf(-gate));
}

}  // namespace adder::cuda
