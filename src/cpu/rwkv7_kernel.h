// What of Rwkv7 (plan.h) comes before and after its recurrence, row by row; the recurrence itself
// is DeltaRuleScan (delta_rule_kernel.h).
#pragma once

#include <cstdint>

#include "model/plan.h"

namespace adder {

// One token's projections, each [inner()], and the mixer's vectors.
struct Rwkv7Token {
  const float* r = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* decay = nullptr;
  const float* rate = nullptr;
  const float* gate = nullptr;
  const float* value_mix = nullptr;    // or none
  const float* first_value = nullptr;  // with value_mix
};
struct Rwkv7Vectors {
  const float* key_scale = nullptr;
  const float* key_rate = nullptr;
  const float* bonus = nullptr;
  const float* norm_weight = nullptr;
  const float* norm_bias = nullptr;
};

// The token's row of the recurrence, each [inner()].
struct Rwkv7Row {
  float* decay = nullptr;
  float* read = nullptr;
  float* write = nullptr;
  float* answer = nullptr;
  float* value = nullptr;
};
void PrepareRwkv7(const Rwkv7& mixer, const Rwkv7Vectors& vectors, const Rwkv7Token& token,
                  const Rwkv7Row& row);

// Norm of y [head_dim] of head `head`, the bonus of the token itself, and the gate; in place.
void FinishRwkv7(const Rwkv7& mixer, const Rwkv7Vectors& vectors, const Rwkv7Token& token,
                 const Rwkv7Row& row, int64_t head, float* y);

}  // namespace adder
