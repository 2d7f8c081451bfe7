// The experts of one token where their weights fill the device: decoding with large experts.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// Columns of an expert's `down` matrix are cut into so many parts at most.
inline constexpr int kMostExpertParts = 4;

// Words of ExpertParams::exchange that a launch for such a `down` matrix uses at most; one of gates
// uses as many as the router has rows.
int64_t ExpertExchangeWords(const PackedMatrix& down);

// Whether LaunchExpertGatesStep takes them; with a router's matrix, by any rule without idle
// choices.
bool CanStepGates(const ExpertParams& params, const LinearShape& shape);

// As LaunchExpertGateUp and LaunchExpertDown, for one token and not LinearShape::batch_invariant.
// False: nothing is launched, since the kernels do not take such matrices or the others are better.
bool LaunchExpertGatesStep(const ExpertParams& params, const LinearShape& shape,
                           cudaStream_t stream);
bool LaunchExpertDownStep(const ExpertParams& params, const LinearShape& shape,
                          cudaStream_t stream);

}  // namespace adder::cuda
