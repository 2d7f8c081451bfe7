// A warp per token, with all scores in shared memory. Phases: (1) PdlWait; (2) scores, and choices:
// scores with the bias; (3) with groups, the choices outside of the best groups become 0; (4) top_k
// rounds, in each of which the warp finds the best choice behind the last one; (5) weights. Sums
// are taken in an order that depends on the number of experts alone.
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/route.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr unsigned kAll = 0xffffffffu;

// Shared memory: scores [experts], choices [experts], best sums of two of groups [groups].
__global__ void __launch_bounds__(32) RouteKernel(const __grid_constant__ RouteParams p) {
  extern __shared__ float shared[];
  float* scores = shared;
  float* choices = scores + p.experts;
  float* of_groups = choices + p.experts;
  const int lane = static_cast<int>(threadIdx.x);
  const auto token = static_cast<long long>(blockIdx.x);
  const float* logits = p.logits + token * p.logits_stride;
  float* out = p.output + token * p.output_stride;
  PdlWait();
  PdlTrigger();

  if (p.sigmoid) {
    for (int e = lane; e < p.experts; e += 32) scores[e] = 1.0f / (1.0f + expf(-logits[e]));
  } else {
    float largest = -INFINITY;
    for (int e = lane; e < p.experts; e += 32) largest = fmaxf(largest, logits[e]);
    for (int offset = 16; offset > 0; offset /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(kAll, largest, offset));
    }
    float sum = 0;
    for (int e = lane; e < p.experts; e += 32) {
      scores[e] = expf(logits[e] - largest);
      sum += scores[e];
    }
    sum = WarpSum(sum);
    for (int e = lane; e < p.experts; e += 32) scores[e] /= sum;
  }
  for (int e = lane; e < p.experts; e += 32) {
    const float choice = p.choice_bias == nullptr ? scores[e] : scores[e] + p.choice_bias[e];
    choices[e] = choice == choice ? choice : -INFINITY;
  }
  __syncwarp();

  if (p.top_groups < p.groups) {
    const int size = p.experts / p.groups;
    for (int group = lane; group < p.groups; group += 32) {
      float first = -INFINITY;
      float second = -INFINITY;
      for (int e = group * size; e < (group + 1) * size; ++e) {
        const float choice = choices[e];
        second = fmaxf(second, fminf(first, choice));
        first = fmaxf(first, choice);
      }
      of_groups[group] = first + second;
    }
    __syncwarp();
    for (int group = lane; group < p.groups; group += 32) {
      int rank = 0;
      for (int other = 0; other < p.groups; ++other) {
        rank += of_groups[other] > of_groups[group] ||
                (of_groups[other] == of_groups[group] && other < group);
      }
      if (rank < p.top_groups) continue;
      for (int e = group * size; e < (group + 1) * size; ++e) choices[e] = 0;
    }
    __syncwarp();
  }

  float sum = p.normalize_eps;
  float last = INFINITY;
  int last_expert = -1;
#pragma unroll 1
  for (int j = 0; j < p.top_k; ++j) {
    float best = -INFINITY;
    int expert = p.experts;
    for (int e = lane; e < p.experts; e += 32) {
      const float choice = choices[e];
      // Only what ranks behind the last choice.
      if (choice > last || (choice == last && e <= last_expert)) continue;
      if (expert == p.experts || choice > best) {
        best = choice;
        expert = e;
      }
    }
    for (int offset = 16; offset > 0; offset /= 2) {
      const float other = __shfl_xor_sync(kAll, best, offset);
      const int other_expert = __shfl_xor_sync(kAll, expert, offset);
      if (other_expert < p.experts &&
          (expert == p.experts || other > best || (other == best && other_expert < expert))) {
        best = other;
        expert = other_expert;
      }
    }
    last = best;
    last_expert = expert;
    const float score = scores[expert];
    sum += score;
    if (lane == 0) {
      const bool idle = expert >= p.experts - p.idle;
      out[j] = idle ? 0.0f : p.expert_scale == nullptr ? score : score * p.expert_scale[expert];
      out[p.top_k + j] = idle ? 0.0f : static_cast<float>(expert);
    }
  }
  __syncwarp();
  const float factor = p.normalizes ? p.scale / sum : p.scale;
  for (int j = lane; j < p.top_k; j += 32) out[j] *= factor;
}

}  // namespace

void LaunchRoute(const RouteParams& params, cudaStream_t stream) {
  if (params.tokens == 0) return;
  const auto floats = static_cast<size_t>(2 * params.experts + params.groups);
  Launch("the kernel that chooses experts", RouteKernel, dim3(static_cast<unsigned>(params.tokens)),
         dim3(32), floats * sizeof(float), stream, params);
}

}  // namespace adder::cuda
