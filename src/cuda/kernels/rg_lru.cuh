// The recurrence of RG-LRU, as model/plan.h has it.
#pragma once

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/rg_lru.h"

namespace adder::cuda {

// h = a h + b.
struct Recurrence {
  float a;
  float b;
};
__device__ __forceinline__ Recurrence RecurrenceOf(const RgLruParams& p, float input,
                                                   float recurrent, float decay, float x,
                                                   bool first) {
  const float log_a = -p.decay_scale * Sigmoid(recurrent) * Softplus(decay);
  const float size = first ? 1.0f : sqrtf(-expm1f(2.0f * log_a));
  return {expf(log_a), size * Sigmoid(input) * x};
}

__device__ __forceinline__ float Step(const Recurrence& of, float state) {
  return fmaf(of.a, state, of.b);
}

}  // namespace adder::cuda
