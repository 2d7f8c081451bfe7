// Mamba-2 between in_proj and the gated norm, for a run of tokens of one sequence, in two phases:
// Mamba2Conv over channels, then Mamba2Scan over heads. A decode step is a run of one token. With a
// selection the caller fills `convolved` and dt by itself.
#pragma once

#include <cstdint>

#include "model/plan.h"

namespace adder {

// Weights and shape of one mixer. Vectors are those of the plan (plan.h).
struct Mamba2Weights {
  const Mamba2* mixer = nullptr;
  const float* conv_weight = nullptr;  // [d_conv, conv_channels]
  const float* conv_bias = nullptr;    // [conv_channels] or none
  const float* dt_bias = nullptr;      // [heads]
  const float* a = nullptr;            // [heads]
  const float* d = nullptr;            // [heads]
};

// One run of tokens. Rows of `projected` are z | x | B | C as in_proj left them, or start with z.
struct Mamba2Run {
  int64_t tokens = 0;
  const float* projected = nullptr;  // [tokens, projected_stride]
  int64_t projected_stride = 0;
  const float* dt = nullptr;  // [tokens, dt_stride]: dt before its bias
  int64_t dt_stride = 0;
  float* window = nullptr;     // state [d_conv - 1, conv_channels], oldest first
  float* state = nullptr;      // state [heads, d_state, head_dim]
  float* convolved = nullptr;  // scratch [tokens, scan_channels]: x | B | C after conv and SiLU
  float* steps = nullptr;      // scratch [tokens, 2, heads]: dt, then exp(dt * a)
  float* output = nullptr;     // [tokens, output_stride], inner channels used
  int64_t output_stride = 0;
};

// Convolution and SiLU of channels [channel_begin, channel_end) of all tokens; rolls their window.
void Mamba2Conv(const Mamba2Weights& weights, const Mamba2Run& run, int64_t channel_begin,
                int64_t channel_end);

// dt and decay of all heads of tokens [token_begin, token_end).
void Mamba2Steps(const Mamba2Weights& weights, const Mamba2Run& run, int64_t token_begin,
                 int64_t token_end);

// State update, C contraction, D skip and gate (not with norm_before_gate) of heads [head_begin,
// head_end), all tokens. Needs the results of both functions above. Each state element takes the
// same operations in the same order whether tokens come one at a time or many, so runs may be cut
// anywhere.
void Mamba2Scan(const Mamba2Weights& weights, const Mamba2Run& run, int64_t head_begin,
                int64_t head_end);

}  // namespace adder
