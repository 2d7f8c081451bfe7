// The Mamba-2 step of many sequences; LaunchMamba2Step chooses it.
#pragma once

#include "cuda/kernels/mamba2.h"

namespace adder::cuda {

// Whether head_dim (a multiple of four) and the device's shared memory allow it.
bool CanStepAsBatch(const Mamba2Params& params);

// As LaunchMamba2Step, and bitwise the same.
void LaunchMamba2BatchStep(const Mamba2Params& params, cudaStream_t stream);

}  // namespace adder::cuda
