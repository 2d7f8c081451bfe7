// The causal depthwise convolution of CausalConvOp (program.h) for a run of tokens of one sequence.
// A decode step is a run of one token.
#pragma once

#include <cstdint>

#include "program/program.h"

namespace adder {

struct CausalConvWeights {
  const CausalConvOp* op = nullptr;
  const float* weight = nullptr;  // [d_conv, channels]
  const float* bias = nullptr;    // [channels] or none
};

struct CausalConvRun {
  int64_t tokens = 0;
  const float* input = nullptr;  // [tokens, input_stride]
  int64_t input_stride = 0;
  float* window = nullptr;  // state [d_conv - 1, channels], oldest first
  float* output = nullptr;  // [tokens, output_stride]
  int64_t output_stride = 0;
};

// Channels [channel_begin, channel_end) of all tokens; rolls their window. Each channel takes the
// same operations in the same order whether tokens come one at a time or many, so runs may be cut
// anywhere.
void CausalConv(const CausalConvWeights& weights, const CausalConvRun& run, int64_t channel_begin,
                int64_t channel_end);

}  // namespace adder
