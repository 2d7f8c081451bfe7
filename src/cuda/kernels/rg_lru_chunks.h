// The real-gated linear recurrent unit over many tokens, all pieces side by side.
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/piece.h"
#include "cuda/kernels/rg_lru.h"

namespace adder::cuda {

// Tokens of a segment: a piece is scanned in several, each from zero.
inline constexpr int kRgLruSegmentTokens = 32;
inline constexpr int kRgLruSegments = kPieceTokens / kRgLruSegmentTokens;

struct RgLruChunkParams {
  RgLruParams mixer;                 // `x`, `gates` and both outputs are not used
  const __nv_bfloat16* x = nullptr;  // [rows, x_stride], after the convolution
  int x_stride = 0;                  // a multiple of 8
  __nv_bfloat16* output = nullptr;   // [rows, output_stride]
  int output_stride = 0;
  const Piece* pieces = nullptr;
  int piece_count = 0;
  const int* first_pieces = nullptr;  // [run_count + 1]: where a run's pieces begin
  // Scratch: {a, b} of every token [rows, width]; the same of every segment, then the state before
  // it, [pieces * kRgLruSegments, width].
  float2* recurrences = nullptr;
  float2* segments = nullptr;
};

// Whether the kernels handle heads of so many channels: a multiple of 8.
bool RgLruChunksSupport(int block);

// Any number of tokens per run. The gates' products are of bf16, all else is f32. State in and out
// as LaunchRgLru has it.
void LaunchRgLruChunks(const RgLruChunkParams& params, cudaStream_t stream);

}  // namespace adder::cuda
