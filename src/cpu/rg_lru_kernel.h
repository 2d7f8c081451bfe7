// The real-gated linear recurrent unit of RgLru (plan.h) between convolution and output gate, for a
// run of tokens of one sequence. A decode step is a run of one token.
#pragma once

#include <cstdint>

namespace adder {

struct RgLruRun {
  int64_t width = 0;
  int64_t block = 0;                        // width of a head
  const float* input_weight = nullptr;      // [heads, block, block], input channels first
  const float* input_bias = nullptr;        // [width]
  const float* recurrent_weight = nullptr;  // as input_weight
  const float* recurrent_bias = nullptr;    // [width]
  const float* decay = nullptr;             // [width], before softplus
  float decay_scale = 8;
  int64_t tokens = 0;
  bool starts = false;       // the first token is the sequence's first
  const float* x = nullptr;  // [tokens, width]: after the convolution
  float* state = nullptr;    // [width]
  float* output = nullptr;   // [tokens, output_stride], width channels used
  int64_t output_stride = 0;
};

// Floats of scratch that RgLruScan needs.
int64_t RgLruScratch(int64_t block);

// Channels [channel_begin, channel_end) of all tokens. Each channel takes the same operations in
// the same order whether tokens come one at a time or many, so runs may be cut anywhere.
void RgLruScan(const RgLruRun& run, int64_t channel_begin, int64_t channel_end, float* scratch);

}  // namespace adder
