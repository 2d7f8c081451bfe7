// The Mamba-1 scan over many tokens, all pieces side by side.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/mamba1.h"
#include "cuda/kernels/piece.h"

namespace adder::cuda {

// Tokens of a segment: a piece is scanned in several, each from zero.
inline constexpr int kMamba1SegmentTokens = 32;
inline constexpr int kMamba1Segments = kPieceTokens / kMamba1SegmentTokens;

struct Mamba1ChunkParams {
  Mamba1Params mixer;                // `x` and both outputs are not used
  const float* dt_bias = nullptr;    // [inner], added to dt before softplus; null: none
  const __nv_bfloat16* x = nullptr;  // [rows, x_stride], after the convolution and SiLU
  int x_stride = 0;
  __nv_bfloat16* output = nullptr;  // [rows, output_stride]: y * silu(z)
  int output_stride = 0;
  const Piece* pieces = nullptr;
  int piece_count = 0;
  const int* first_pieces = nullptr;  // [run_count + 1]: where a run's pieces begin
  // Scratch: what each segment adds to the state, then the state before it, [pieces *
  // kMamba1Segments, d_state, inner]; sums of dt [pieces * kMamba1Segments, inner].
  float* states = nullptr;
  float* sums = nullptr;
};

// Any number of tokens per run. State in and out as LaunchMamba1Scan has it; all of it is f32.
void LaunchMamba1Chunks(const Mamba1ChunkParams& params, cudaStream_t stream);

}  // namespace adder::cuda
