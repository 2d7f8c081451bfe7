// A block's choice of experts by any of the rules of model/plan.h. Sums are taken in an order that
// depends on the number of experts alone.
#pragma once

#include "cuda/kernels/expert_choice.cuh"
#include "cuda/kernels/route.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {

// Bytes of shared memory: scores, an ExpertChoice, what each group counts.
__host__ __device__ constexpr int ChoiceByRuleBytes(int experts, int groups) {
  return 4 * experts + ExpertChoice::Bytes(experts) + 4 * groups;
}

// Every thread of a block of whole warps calls this. `shared` begins with the experts' logits; a
// barrier lies between their writing and this, which ends with one. The ExpertChoice behind them
// then has the chosen experts' numbers, and the logits have become scores.
__device__ inline void RankByRule(const RouteParams& p, float* shared) {
  float* scores = shared;
  const ExpertChoice choice(shared + p.experts, p.experts);
  float* of_groups = shared + 4 * p.experts;
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = thread % 32;
  float largest = -INFINITY;
  float sum = 0;
  if (!p.sigmoid) {
    // By every warp alike.
    for (int e = lane; e < p.experts; e += 32) largest = fmaxf(largest, scores[e]);
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    for (int e = lane; e < p.experts; e += 32) sum += expf(scores[e] - largest);
    sum = WarpSum(sum);
    __syncthreads();
  }
  for (int e = thread; e < p.experts; e += threads) {
    const float score =
        p.sigmoid ? 1.0f / (1.0f + expf(-scores[e])) : expf(scores[e] - largest) / sum;
    scores[e] = score;
    choice.SetScore(e, p.choice_bias == nullptr ? score : score + p.choice_bias[e]);
  }
  __syncthreads();

  if (p.top_groups < p.groups) {
    const int size = p.experts / p.groups;
    for (int group = thread; group < p.groups; group += threads) {
      float first = -INFINITY;
      float second = -INFINITY;
      for (int e = group * size; e < (group + 1) * size; ++e) {
        const float of_expert = choice.scores[e];
        second = fmaxf(second, fminf(first, of_expert));
        first = fmaxf(first, of_expert);
      }
      of_groups[group] = first + second;
    }
    __syncthreads();
    for (int group = thread; group < p.groups; group += threads) {
      int rank = 0;
      for (int other = 0; other < p.groups; ++other) {
        rank += of_groups[other] > of_groups[group] ||
                (of_groups[other] == of_groups[group] && other < group);
      }
      if (rank < p.top_groups) continue;
      for (int e = group * size; e < (group + 1) * size; ++e) choice.scores[e] = -INFINITY;
    }
    __syncthreads();
  }

  choice.Rank(p.top_k);
}

// The numbers of what RankByRule has chosen, best first.
__device__ inline const int* ChosenByRule(const RouteParams& p, const float* shared) {
  return reinterpret_cast<const int*>(shared + 3 * p.experts);
}

// What RankByRule has chosen, and its weights, by threads first, first + step, ... of a block. out:
// as RouteParams::output of one token.
__device__ inline void WeighByRule(const RouteParams& p, const float* shared, int first, int step,
                                   float* out) {
  const float* scores = shared;
  const int* experts = ChosenByRule(p, shared);
  for (int j = first; j < p.top_k; j += step) {
    float chosen = p.normalize_eps;
    for (int other = 0; other < p.top_k; ++other) chosen += scores[experts[other]];
    const float factor = p.normalizes ? p.scale / chosen : p.scale;
    const int expert = experts[j];
    const bool idle = expert >= p.experts - p.idle;
    const float scale = p.expert_scale == nullptr ? factor : factor * p.expert_scale[expert];
    out[j] = idle ? 0.0f : scores[expert] * scale;
    out[p.top_k + j] = idle ? 0.0f : static_cast<float>(expert);
  }
}

// Both, with the same conditions.
__device__ inline void ChooseByRule(const RouteParams& p, float* shared, float* out) {
  RankByRule(p, shared);
  WeighByRule(p, shared, static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x), out);
}

}  // namespace adder::cuda
