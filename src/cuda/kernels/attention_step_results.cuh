// Results of attention to some of a row's positions, and their sums. A result is, per head, the
// largest score, as a logarithm to base 2, the sum of weights relative to it, and the weighted sum
// of values. Four dimensions of a head, a quad, are one thread's.
#pragma once

#include "cuda/kernels/attention_step_math.cuh"
#include "cuda/kernels/cluster.cuh"

namespace adder::cuda {

constexpr float kLowestScore = -1e30f;  // finite: differences stay numbers

struct MergedQuad {
  float2 scores;  // largest, sum
  float4 values;
};

__device__ __forceinline__ void AddScaled(MergedQuad& merged, float2 scores, float4 values) {
  const float scale = Exp2(scores.x - merged.scores.x);
  merged.scores.y = fmaf(scale, scores.y, merged.scores.y);
  merged.values.x = fmaf(scale, values.x, merged.values.x);
  merged.values.y = fmaf(scale, values.y, merged.values.y);
  merged.values.z = fmaf(scale, values.z, merged.values.z);
  merged.values.w = fmaf(scale, values.w, merged.values.w);
}

// Of `count` results, at most kMost.
template <int kMost, class Scores, class Values>
__device__ __forceinline__ MergedQuad MergeQuads(int count, const Scores& scores_of,
                                                 const Values& values_of) {
  MergedQuad merged = {{kLowestScore, 0}, {0, 0, 0, 0}};
  float2 scores[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    scores[i] = i < count ? scores_of(i) : make_float2(kLowestScore, 0);
    merged.scores.x = fmaxf(merged.scores.x, scores[i].x);
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    AddScaled(merged, scores[i], values_of(min(i, count - 1)));
  }
  return merged;
}
// Of any number.
template <class Scores, class Values>
__device__ __forceinline__ MergedQuad MergeMany(int count, const Scores& scores_of,
                                                const Values& values_of) {
  MergedQuad merged = {{kLowestScore, 0}, {0, 0, 0, 0}};
#pragma unroll 4
  for (int i = 0; i < count; ++i) merged.scores.x = fmaxf(merged.scores.x, scores_of(i).x);
#pragma unroll 4
  for (int i = 0; i < count; ++i) AddScaled(merged, scores_of(i), values_of(i));
  return merged;
}

// Where teams put a head's quad: lanes that store or load at once then use different banks.
__device__ __forceinline__ int PlaceOfQuad(int head, int quad) {
  return quad ^ (quad >> 2 & 2) ^ (head & 1);
}

}  // namespace adder::cuda
