// Causal depthwise convolution over the channels of a row, for a run of tokens of one sequence.
#pragma once

#include <cstdint>

namespace adder {

struct ConvRun {
  int64_t channels = 0;
  int64_t d_conv = 0;
  const float* weight = nullptr;  // [d_conv, channels]
  const float* bias = nullptr;    // [channels] or none
  int64_t tokens = 0;
  const float* input = nullptr;  // [tokens, input_stride], `channels` of each row used
  int64_t input_stride = 0;
  float* window = nullptr;  // state [d_conv - 1, channels], oldest first
  float* output = nullptr;  // [tokens, output_stride]
  int64_t output_stride = 0;
};

// Convolution and SiLU of channels [channel_begin, channel_end) of all tokens; rolls their window.
// Results do not depend on where runs are cut.
void ConvSilu(const ConvRun& run, int64_t channel_begin, int64_t channel_end);

}  // namespace adder
