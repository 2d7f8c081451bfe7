// The rotary embedding of a pair of elements, for every kernel that turns queries or keys.
#pragma once

#include "cuda/kernels/attention.h"

namespace adder::cuda {

// Sine (x) and cosine (y) of a pair's angle, times the embedding's factor. The angle is rounded to
// f32 first, as in the references. Whole turns are taken off in double precision, so no position is
// too large. params.inverse_frequencies must not be null.
__device__ __forceinline__ float2 Rotation(const AttentionParams& params, int position, int pair) {
  const float angle = static_cast<float>(position) * params.inverse_frequencies[pair];
  const double turns = static_cast<double>(angle) * 0.15915494309189535;
  float2 by;
  sincospif(2.0f * static_cast<float>(turns - rint(turns)), &by.x, &by.y);
  return make_float2(by.x * params.rotation_factor, by.y * params.rotation_factor);
}

// Both elements of a pair, turned.
__device__ __forceinline__ float2 Turned(float2 by, float first, float second) {
  return make_float2(first * by.y - second * by.x, second * by.y + first * by.x);
}

}  // namespace adder::cuda
