// The mixing of q, k and v of attention (HeadMixing in plan.h) for a run of tokens of one sequence.
#pragma once

#include <cstdint>

#include "cpu/aligned_memory.h"
#include "model/plan.h"

namespace adder {

// Vectors are those of the plan.
struct HeadMixWeights {
  const Attention* mixer = nullptr;
  const float* conv_weight = nullptr;
  const float* conv_bias = nullptr;
  const float* group_weight = nullptr;
  const float* group_bias = nullptr;
};

struct HeadMixRun {
  int64_t tokens = 0;
  const float* input = nullptr;  // [tokens, qkv_rows()]: q | k | v1 | v2
  float* output = nullptr;       // [tokens, qkv_rows()]: q | k | v
  float* window = nullptr;       // state [past(), channels of q | k], oldest first
  float* delayed = nullptr;      // state [kv_width() / 2]: v2 of the token before
};

// Head `head` of q | k (the heads of q come first) of all tokens; rolls its part of the window. A
// token's result is the same wherever the run begins.
void MixHead(const HeadMixWeights& weights, const HeadMixRun& run, int64_t head,
             Scratch<float>& scratch);

// v of all tokens, and the new `delayed`.
void DelayValues(const Attention& mixer, const HeadMixRun& run);

}  // namespace adder
