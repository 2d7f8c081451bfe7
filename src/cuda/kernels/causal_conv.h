// A causal depthwise convolution with what is done to its channels right before and after it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/piece.h"
#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

inline constexpr int kMostConvTaps = 8;

// As CausalConvOp in program/program.h. State of a sequence, from conv_offset floats after the
// start of its slot on: a ring [d_conv][channels], u at position p in row p % d_conv; unused with
// d_conv = 1.
struct CausalConvParams {
  int channels = 0;
  int d_conv = 0;                 // at most kMostConvTaps
  const float* weight = nullptr;  // [d_conv, channels], time-major
  const float* bias = nullptr;    // null: none
  long long conv_offset = 0;
  // Columns of an input row; -1: there is no such gate.
  int x = 0;
  int gate_before = -1;
  int gate_after = -1;
  bool silu = false;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  const float* input = nullptr;  // [rows, input_stride]
  int input_stride = 0;
  float* output = nullptr;  // [rows, output_stride], not the input
  int output_stride = 0;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output; null: none
  int rounded_output_stride = 0;
};

// Of runs with at most `most_tokens` tokens. A token's result is bitwise the same however the
// tokens of its sequence are cut into runs.
void LaunchCausalConv(const CausalConvParams& params, int most_tokens, cudaStream_t stream);

// The window alone: the last u of each run.
void LaunchConvWindow(const CausalConvParams& params, cudaStream_t stream);

// The same for runs cut into pieces, in bf16 alone: to rounded_output, not output.
void LaunchCausalConvPieces(const CausalConvParams& params, const Piece* pieces, int piece_count,
                            cudaStream_t stream);
// Whether LaunchCausalConvPieces handles it: channels and columns that are multiples of 4, as
// strides must be.
bool ConvPiecesSupport(const CausalConvParams& params);

}  // namespace adder::cuda
