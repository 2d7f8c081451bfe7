// What comes before attention in models whose q, k and v need more than norms of q and k.
#pragma once

#include "cuda/kernels/attention.h"

namespace adder::cuda {

// Norms and rotates q in place, and puts k and v into the pages, by every rule that AttentionParams
// has. Norms must be of single heads.
void LaunchPlaceHeads(const AttentionParams& params, cudaStream_t stream);

// Multi-head latent attention (model/plan.h) before LaunchAttention.
struct LatentPlaceParams {
  // heads, head_dim = latent + rope_dim, kv_heads = 1, latent, rotary embedding, pages and runs are
  // used; of `qkv` [rows, heads * head_dim] every element is written: absorbed q | rotated qr.
  AttentionParams attention;
  const float* query = nullptr;  // [rows, query_stride], per head qn [nope_dim] | qr [rope_dim]
  int query_stride = 0;
  int nope_dim = 0;
  const float* absorbed = nullptr;  // [rows, absorbed_stride], [heads * latent]
  int absorbed_stride = 0;
  const float* kv = nullptr;  // [rows, kv_stride]: c [latent] | kr [rope_dim]
  int kv_stride = 0;
  const float* norm_weight = nullptr;  // of c, [latent]; null: all ones
  float norm_eps = 0;
};

// Puts the normed c and the rotated kr into the pages, and every head's query together.
void LaunchLatentPlace(const LatentPlaceParams& params, cudaStream_t stream);

}  // namespace adder::cuda
