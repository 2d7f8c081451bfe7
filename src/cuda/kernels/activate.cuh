// Activations in f32.
#pragma once

#include <cuda_runtime.h>

#include "model/plan.h"

namespace adder::cuda {

__device__ __forceinline__ float Sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// log(1 + e^x); above the threshold that is x to f32 rounding.
__device__ __forceinline__ float Softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

__device__ __forceinline__ float Activate(Activation activation, float x) {
  switch (activation) {
    case Activation::kSilu:
      return x / (1.0f + expf(-x));
    case Activation::kGelu:
      return 0.5f * x * erfcf(-0.707106781f * x);
    case Activation::kGeluTanh:
      return x / (1.0f + expf(-1.595769122f * (x + 0.044715f * x * x * x)));
    case Activation::kRelu2:
      return x > 0 ? x * x : 0.0f;
    case Activation::kSigmoid:
      return Sigmoid(x);
    case Activation::kTanh:
      return tanhf(x);
  }
  return x;
}

}  // namespace adder::cuda
