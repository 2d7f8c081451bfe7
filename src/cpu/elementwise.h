// Kernels that work on one activation row at a time.
#pragma once

#include <cstdint>

#include "model/plan.h"

namespace adder {

// out = x / sqrt(mean(x^2) + eps) * weight, the mean taken over each of `groups` equal parts. x and
// out may be the same. Without a weight (nullptr) it is 1.
void RmsNormRow(const float* x, const float* weight, int64_t size, int64_t groups, float eps,
                float* out);

// out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias. x and out may be the
// same.
void LayerNormRow(const float* x, const float* weight, const float* bias, int64_t size, float eps,
                  float* out);

// out[p] = y + mix[p] * (previous - y) for each of `parts` rows of `size`.
void TokenShiftRow(const float* y, const float* previous, const float* mix, int64_t parts,
                   int64_t size, float* out);

// out[i] = activation(gate[i]) * up[i], or without `up` (none) activation(gate[i]).
void ActivateRow(Activation activation, const float* gate, const float* up, int64_t size,
                 float* out);

// How a row joins what is there:
// out[i] = total * (keep * (out[i] + keep_bias[i]) * keep_scale[i] +
//                   scale * (x[i] + add_bias[i]) * add_scale[i])
// Vectors may be none. With keep 0 what is there is not read. x and out may be the same then.
struct UpdateRow {
  float scale = 1;
  float keep = 1;
  const float* add_bias = nullptr;
  const float* add_scale = nullptr;
  const float* keep_bias = nullptr;
  const float* keep_scale = nullptr;
  float total = 1;

  void Apply(const float* x, int64_t size, float* out) const;
};

// out[i] += factor * x[i].
void AddScaledRow(const float* x, float factor, int64_t size, float* out);

}  // namespace adder
