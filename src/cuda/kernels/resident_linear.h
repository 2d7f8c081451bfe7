// Heads of larger batches on GPUs of compute capability 9.0: matrices of many rows and few columns,
// unpacked to bf16 (see unpacked_linear.h).
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// Tokens of a launch: more than half of them, or unpacked_linear.h is as good.
inline constexpr int kResidentTokens = 128;

// As LaunchUnpackedLinear, with all tokens' activations in every block's shared memory, so that
// only weights stream. False: nothing is launched, since it takes no such matrix or batch.
bool LaunchResidentLinear(const LinearParams& params, const uint16_t* unpacked, int multiprocessors,
                          cudaStream_t stream);

}  // namespace adder::cuda
