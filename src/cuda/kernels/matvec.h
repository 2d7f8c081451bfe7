// The matrix kernel for one token: decoding.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// Most tokens that one launch takes, experts aside (each of whose blocks has one token).
inline constexpr int kMostMatvecTokens = 1;

// As LaunchLinear, LaunchExpertGateUp and LaunchExpertDown; `experts` is null for the first. The
// matrix must have a multiple of four columns, and the input's rows begin on 16-byte boundaries.
void LaunchMatvec(const LinearParams& linear, const ExpertParams* experts, Experts kind,
                  const LinearShape& shape, cudaStream_t stream);
// The same with kRule: of one matrix, or of experts' gates.
void LaunchRuledMatvec(const LinearParams& linear, const ExpertParams* experts,
                       const LinearShape& shape, cudaStream_t stream);
// The same with kStore, kAdd or kSiluMul and a norm.
void LaunchNormedMatvec(const LinearParams& linear, const LinearShape& shape, cudaStream_t stream);

}  // namespace adder::cuda
