// The real-gated linear recurrent unit between its convolution and out_proj.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/sequence_table.h"
#include "model/plan.h"

namespace adder::cuda {

inline constexpr int kMostRgLruBlock = 1024;

// Sizes and weights as RgLru in model/plan.h. State of a sequence, from state_offset floats after
// the start of its slot on: [width].
struct RgLruParams {
  int width = 0;
  int block = 0;  // channels of a head, at most kMostRgLruBlock
  float decay_scale = 0;
  Activation gate_activation = Activation::kGeluTanh;
  const float* input_weight = nullptr;  // [heads, block, block], inputs first
  const float* input_bias = nullptr;    // [width]
  const float* recurrent_weight = nullptr;
  const float* recurrent_bias = nullptr;
  const float* decay = nullptr;
  long long state_offset = 0;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  int rows = 0;
  const int* row_runs = nullptr;  // [rows]: which run a row belongs to
  const float* x = nullptr;       // [rows, x_stride], after the convolution
  int x_stride = 0;
  const float* y = nullptr;  // [rows, y_stride], before the activation
  int y_stride = 0;
  float* gates = nullptr;   // scratch of [rows, 2 * width]; not for steps
  float* output = nullptr;  // [rows, output_stride]
  int output_stride = 0;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output; null: none
  int rounded_output_stride = 0;
};

// Of runs with at most `most_tokens` tokens. A token's result is bitwise the same however the
// tokens of its sequence are cut into runs.
void LaunchRgLru(const RgLruParams& params, int most_tokens, cudaStream_t stream);

}  // namespace adder::cuda
