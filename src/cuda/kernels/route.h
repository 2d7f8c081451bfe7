// The choice of experts by any of the rules of model/plan.h. The common rule, softmax over the
// largest logits, is part of the matrix kernel (LinearEpilogue::kRouter).
#pragma once

#include <cuda_runtime_api.h>

namespace adder::cuda {

inline constexpr int kMostRoutedExperts = 4096;

// As Routing in model/plan.h. A choice that is not a number is the worst.
struct RouteParams {
  const float* logits = nullptr;  // [tokens, logits_stride]
  int logits_stride = 0;
  int tokens = 0;
  int experts = 0;  // with the idle ones, at most kMostRoutedExperts
  int top_k = 0;
  bool sigmoid = false;                // else softmax over all experts
  const float* choice_bias = nullptr;  // [experts]; null: none
  int groups = 1;                      // of at least two experts each, if not all are kept
  int top_groups = 1;
  bool normalizes = true;
  float normalize_eps = 0;
  float scale = 1;
  const float* expert_scale = nullptr;  // [experts]; null: all ones
  // So many of the last choices are no experts; chosen, they are expert 0 of weight 0.
  int idle = 0;
  float* output = nullptr;  // [tokens, output_stride]: weights, then expert numbers as f32
  int output_stride = 0;
  // [tokens * top_k], of LaunchRoute: the numbers again, of idle ones -1; null: not asked for.
  int* chosen = nullptr;
};

void LaunchRoute(const RouteParams& params, cudaStream_t stream);

}  // namespace adder::cuda
