// The gated delta rule over many tokens, chunk by chunk on tensor cores (Yang et al.,
// "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", arXiv:2406.06484).
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/gated_delta.h"
#include "cuda/kernels/piece.h"

namespace adder::cuda {

struct GatedDeltaChunkParams {
  // `qkv`, `output` and the convolution are not used. Rows of the gate begin on 8-byte boundaries.
  GatedDeltaParams mixer;
  const __nv_bfloat16* convolved = nullptr;  // [rows, convolved_stride]: q | k | v
  int convolved_stride = 0;                  // a multiple of 8
  __nv_bfloat16* output = nullptr;           // [rows, output_stride]: normed and gated
  int output_stride = 0;                     // even
  const Piece* pieces = nullptr;
  int piece_count = 0;
  const int* first_pieces = nullptr;  // [run_count + 1]: where a run's pieces begin
  // Scratch: per half of a piece and head GatedDeltaRecord(...) elements, and kMostChunkKeyDim.
  __nv_bfloat16* records = nullptr;
  float* keeps = nullptr;
};

inline constexpr int kMostChunkKeyDim = 128;

// Whether the kernels handle a mixer: dimensions that are multiples of 8, keys of at most
// kMostChunkKeyDim, values of at most kMostDeltaValueDim elements.
bool GatedDeltaChunksSupport(int key_dim, int value_dim);
size_t GatedDeltaRecord(int key_dim, int value_dim);

// Any number of tokens per run. Products have bf16 factors; decays, states and sums are f32. State
// in and out as LaunchGatedDeltaStep has it.
void LaunchGatedDeltaChunks(const GatedDeltaChunkParams& params, cudaStream_t stream);

}  // namespace adder::cuda
