// What tells tensor copies where a batch's activations lie.
#pragma once

#include <cuda.h>

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// Describes the rounded input of `params` to copies into shared memory: boxes of a chunk of columns
// by `box_tokens` rows, in the order of OperandInShared (wgmma.cuh); what lies beyond the batch and
// the columns is zero. Throws Error if the driver is too old to know such copies.
CUtensorMap MapTokens(const LinearParams& params, int box_tokens);

}  // namespace adder::cuda
