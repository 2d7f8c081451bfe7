// Attention of many tokens on tensor cores.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/attention.h"
#include "cuda/kernels/piece.h"

namespace adder::cuda {

struct AttentionChunkParams {
  AttentionParams attention;  // keys and values as bf16; `output`, `partial`, `arrivals` unused
  const Piece* pieces = nullptr;
  int piece_count = 0;
  __nv_bfloat16* output = nullptr;  // [rows, output_stride]
  int output_stride = 0;            // a multiple of 8
};

// Whether the kernel handles such heads and pages.
bool AttentionChunksSupport(int head_dim, int page_positions);

// After LaunchKvAppend: softmax attention of every row over positions 0 .. its own, or those of its
// window, with queries, keys, values and weights as bf16 and sums in f32.
void LaunchAttentionChunks(const AttentionChunkParams& params, cudaStream_t stream);

}  // namespace adder::cuda
