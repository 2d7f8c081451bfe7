// One step of recurrences (plan.h) as the interpreter computes it.
#pragma once

#include <vector>

#include "model/plan.h"

namespace adder {

// What a token brings to GatedDelta, and the mixer's vectors.
struct GatedDeltaToken {
  const float* qkv = nullptr;    // after the convolution
  const float* beta = nullptr;   // [value_heads]
  const float* decay = nullptr;  // [decay_rows()]
  const float* gate = nullptr;   // [values()]
  const float* dt_bias = nullptr;
  const float* a = nullptr;
  const float* norm = nullptr;
};

// state is [value_heads, key_dim, value_dim], out [values()].
void GatedDeltaStep(const GatedDelta& mixer, const GatedDeltaToken& token, float* state,
                    float* out);

// What a token brings to RgLru, and the mixer's vectors.
struct RgLruToken {
  const float* x = nullptr;  // after the convolution
  const float* y = nullptr;
  bool first = false;  // of its sequence
  const float* input_weight = nullptr;
  const float* input_bias = nullptr;
  const float* recurrent_weight = nullptr;
  const float* recurrent_bias = nullptr;
  const float* decay = nullptr;
};

// state and out are [width].
void RgLruStep(const RgLru& mixer, const RgLruToken& token, float* state, float* out);

// What a token brings to Rwkv7, and the mixer's vectors. v is mixed already.
struct Rwkv7Inputs {
  const float* r = nullptr;
  const float* k = nullptr;
  std::vector<double> v;
  const float* decay = nullptr;
  const float* rate = nullptr;
  const float* key_scale = nullptr;
  const float* key_rate = nullptr;
  const float* bonus = nullptr;
};

// What the state answers, before the norm, and the token's own part behind it; both [inner()].
struct Rwkv7Answer {
  std::vector<double> y;
  std::vector<double> bonus;
};

// state is [heads, head_dim, head_dim].
Rwkv7Answer Rwkv7Step(const Rwkv7& mixer, const Rwkv7Inputs& token, float* state);

}  // namespace adder
