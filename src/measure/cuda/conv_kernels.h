// The convolution of a decode step as a kernel of its own, to be timed.
#pragma once

#include <cuda_runtime_api.h>

#include "core/dtype.h"

namespace adder {

// input, output [channels] and ring [taps][channels] have elements of `dtype` (f32, f16 or bf16);
// weight [taps, channels], time-major, and bias [channels] are f32. Row p % taps of the ring holds
// the input of position p; the step writes its own.
struct ConvStepParams {
  int channels = 0;
  int taps = 0;
  int position = 0;
  const float* weight = nullptr;
  const float* bias = nullptr;
  const void* input = nullptr;
  void* ring = nullptr;
  void* output = nullptr;  // silu(convolution + bias)
};

void LaunchConvStep(const ConvStepParams& params, DType dtype, cudaStream_t stream);

}  // namespace adder
