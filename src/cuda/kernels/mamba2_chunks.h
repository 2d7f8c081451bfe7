// The Mamba-2 mixer over many tokens, chunk by chunk on tensor cores (Dao and Gu, "Transformers are
// SSMs", 2024, section 6).
#pragma once

#include <cuda_bf16.h>

#include "cuda/kernels/mamba2.h"
#include "cuda/kernels/piece.h"

namespace adder::cuda {

struct Mamba2ChunkParams {
  // `output` is not used. Without `gates` it is y alone, without `d` there is no skip.
  Mamba2Params mixer;
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
  // Rows of x, B and C that other kernels made, each of the next head or group a step behind the
  // one before; strides and steps are multiples of 8. The mixer then has no convolution (d_conv 1)
  // and is given `dt` or slopes. Null: all is in `projected`.
  const __nv_bfloat16* x = nullptr;
  int x_stride = 0;
  int x_step = 0;
  const __nv_bfloat16* b = nullptr;
  const __nv_bfloat16* c = nullptr;
  int b_c_stride = 0;
  int b_c_step = 0;
  // Of heads: dt is 1 and a the negative slope, whatever the mixer says (lightning attention: Qin
  // et al., "Various Lengths, Constant Speed", 2024, with C, B, x for q, k, v). Null: none.
  const float* slopes = nullptr;
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
