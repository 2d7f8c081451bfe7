// Choosing tokens from logits on the device.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

// Tokens of the recent past that a row remembers for the repeat penalty.
inline constexpr int kHistoryTokens = 1024;
// Steps whose tokens the host may not have read yet.
inline constexpr int kOutputSteps = 16;
// Largest top_k that is ranked exactly.
inline constexpr int kMaxRankedTopK = 1024;

// Parameters and progress of one row. Written by the host when a decode starts, then by the kernel.
struct SamplingRow {
  float temperature;
  float top_p;
  float min_p;
  float repeat_penalty;
  int top_k;          // at most kMaxRankedTopK; 0: all
  int repeat_window;  // at most kHistoryTokens
  int active;         // 0: padding; nothing is chosen
  unsigned steps;     // done so far
  unsigned long long seed;
  unsigned long long draws;
  unsigned long long history_count;  // tokens so far; the last kHistoryTokens are in the history
};

struct SampleParams {
  float* logits = nullptr;  // [rows, stride]; changed where a penalty applies
  int stride = 0;           // a multiple of four
  int vocab = 0;
  int rows = 0;
  SamplingRow* sampling = nullptr;
  int* history = nullptr;       // [rows][kHistoryTokens] rings
  SequenceRun* runs = nullptr;  // positions are moved on by one
  int* tokens = nullptr;        // [rows]: the next step's input
  int* output = nullptr;        // [kOutputSteps][output_stride], host memory; -1: logits not finite
  int output_stride = 0;
};

// `sampling` and `runs` must have been written before the kernel before this one.
void LaunchSample(const SampleParams& params, cudaStream_t stream);

}  // namespace adder::cuda
