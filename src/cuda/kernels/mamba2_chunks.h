// The Mamba-2 mixer over many tokens, chunk by chunk on tensor cores (Dao and Gu, "Transformers are
// SSMs", 2024, section 6).
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/mamba2.h"
#include "cuda/kernels/piece.h"

namespace adder::cuda {

struct Mamba2ChunkParams {
  Mamba2Params mixer;               // `output` is not used
  int rows = 0;                     // tokens of all runs
  __nv_bfloat16* output = nullptr;  // [rows, output_stride]: y * silu(z)
  int output_stride = 0;            // a multiple of 8
  const Piece* pieces = nullptr;
  int piece_count = 0;
  const int* first_pieces = nullptr;  // [run_count + 1]: where a run's pieces begin
  // Scratch: convolved inputs [rows, conv_channels]; {dt, sum of dt * a * log2(e) since the piece
  // began} [heads, rows]; what each piece adds to the state, and the state before each piece
  // [pieces, heads, d_state, head_dim].
  __nv_bfloat16* convolved = nullptr;
  float2* steps = nullptr;
  float* added = nullptr;
  __nv_bfloat16* before = nullptr;
};

// Whether the kernels handle a mixer: head_dim and d_state multiples of 8, d_state at most
// kMaxStateSize, at most eight taps.
bool Mamba2ChunksSupport(int head_dim, int d_state, int d_conv);

// Any number of tokens per run. Activations are rounded to bf16 after the convolution; decays,
// states and sums are f32. State in and out as LaunchMamba2Step has it.
void LaunchMamba2Chunks(const Mamba2ChunkParams& params, int multiprocessors, cudaStream_t stream);

}  // namespace adder::cuda
