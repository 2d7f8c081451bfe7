// Attention of one token per run, bf16 keys and values, for what attention_step.h does not take:
// latent attention, wide heads, and heads that LaunchPlaceHeads prepares.
#pragma once

#include "cuda/kernels/attention_place.h"

namespace adder::cuda {

// Whether LaunchWideAttentionStep can take these sizes.
bool TakesWideAttentionStep(const AttentionParams& params);
// As LaunchAttention, after LaunchKvAppend, for batches with one token per run; keys and values of
// earlier positions must have been written before the kernel before this one.
void LaunchWideAttentionStep(const AttentionParams& params, cudaStream_t stream);

// Whether LaunchLatentStep can take these sizes.
bool TakesLatentStep(const AttentionParams& params);
// LaunchLatentPlace and LaunchAttention in one kernel, for batches with one token per run; keys of
// earlier positions as above. `qkv` is not used.
void LaunchLatentStep(const LatentPlaceParams& params, cudaStream_t stream);

}  // namespace adder::cuda
