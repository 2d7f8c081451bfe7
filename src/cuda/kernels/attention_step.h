// The attention kernel of decoding with bf16 keys and values; LaunchAttentionStep chooses it.
#pragma once

#include "cuda/kernels/attention.h"

namespace adder::cuda {

// Whether LaunchFusedAttentionStep can take these sizes.
bool TakesAttentionStep(const AttentionParams& params);
// Whether it can take the norms of q and k: those over a head each.
bool NormsWholeHeads(const AttentionParams& params);
void LaunchFusedAttentionStep(const AttentionParams& params, cudaStream_t stream);

}  // namespace adder::cuda
