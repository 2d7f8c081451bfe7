// RWKV-7's generalised delta rule over many tokens, chunk by chunk on tensor cores.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/piece.h"
#include "cuda/kernels/rwkv7.h"

namespace adder::cuda {

struct Rwkv7ChunkParams {
  Rwkv7Params mixer;                // outputs are not used
  __nv_bfloat16* output = nullptr;  // [rows, output_stride]
  int output_stride = 0;            // even
  const Piece* pieces = nullptr;
  int piece_count = 0;
  const int* first_pieces = nullptr;  // [run_count + 1]: where a run's pieces begin
  // Scratch, of each half of a piece and head: kRwkv7Record elements, kRwkv7Keeps, kRwkv7Sums and
  // kRwkv7Own floats.
  __nv_bfloat16* records = nullptr;
  float* keeps = nullptr;
  float* sums = nullptr;
  float* own = nullptr;
};

inline constexpr int kMostRwkv7ChunkDim = 64;
inline constexpr int kRwkv7Record = 6 * 64 * 64;
inline constexpr int kRwkv7Keeps = 128;
inline constexpr int kRwkv7Sums = 2 * 64 * 64;
inline constexpr int kRwkv7Own = 64;

// Whether the kernels handle such heads: a multiple of 8, at most kMostRwkv7ChunkDim.
bool Rwkv7ChunksSupport(int head_dim);

// Any number of tokens per run. Products have bf16 factors; decays, states and sums are f32. State
// in and out as LaunchRwkv7 has it.
void LaunchRwkv7Chunks(const Rwkv7ChunkParams& params, cudaStream_t stream);

}  // namespace adder::cuda
