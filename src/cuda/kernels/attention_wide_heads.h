// Attention of many tokens on tensor cores for heads that attention_chunks.h does not take: those
// of more than 256 elements, and latent attention.
#pragma once

#include "cuda/kernels/attention_chunks.h"

namespace adder::cuda {

// Elements of such a head, or of a latent, at most, and of the part of a key behind a latent.
inline constexpr int kMostWideHeadDim = 512;
inline constexpr int kMostLatentRope = 64;

// Where latent attention (AttentionParams::latent > 0) finds its queries: of head h the first part,
// which meets the latents, and the second, which is rotated here.
struct LatentQueries {
  const __nv_bfloat16* absorbed = nullptr;  // [rows, absorbed_stride]: [heads, latent]
  int absorbed_stride = 0;                  // a multiple of 8
  const float* query = nullptr;  // [rows, query_stride]: per head qn [nope_dim] | qr [rope_dim]
  int query_stride = 0;
  int nope_dim = 0;
};

// What LaunchAttentionChunks is for heads of more than kMaxAttentionHeadDim elements.
void LaunchWideHeadChunks(const AttentionChunkParams& params, cudaStream_t stream);

// Whether the kernels handle keys of latent | rope_dim, all of which is rotated or nothing.
bool LatentChunksSupport(int latent, int rope_dim, int page_positions);

// As LaunchAttentionChunks for latent attention, after LaunchLatentPlace, which need not have made
// queries: those of `qkv` are not read. output [rows, output_stride]: per head the weighed sum of
// the latents.
void LaunchLatentChunks(const AttentionChunkParams& params, const LatentQueries& queries,
                        cudaStream_t stream);

}  // namespace adder::cuda
