// Mamba-1 between dt_proj and out_proj, for a run of tokens of one sequence. A decode step is a run
// of one token.
#pragma once

#include <cstdint>

namespace adder {

struct Mamba1Run {
  int64_t inner = 0;
  int64_t d_state = 0;
  const float* a = nullptr;  // [d_state, inner]
  const float* d = nullptr;  // [inner]
  int64_t tokens = 0;
  const float* x = nullptr;  // [tokens, inner]: after conv and SiLU
  float* dt = nullptr;       // [tokens, inner]: of dt_proj; softplus is applied in place
  const float* b = nullptr;  // rows of d_state, bc_stride apart; c likewise
  const float* c = nullptr;
  int64_t bc_stride = 0;
  const float* z = nullptr;  // rows of inner, z_stride apart
  int64_t z_stride = 0;
  float* state = nullptr;   // state [d_state, inner]
  float* output = nullptr;  // [tokens, output_stride], inner channels used
  int64_t output_stride = 0;
};

// Softplus, state update, C contraction, D skip and gate of channels [channel_begin, channel_end),
// all tokens. Each state element takes the same operations in the same order whether tokens come
// one at a time or many, so runs may be cut anywhere.
void Mamba1Scan(const Mamba1Run& run, int64_t channel_begin, int64_t channel_end);

}  // namespace adder
