// MLX's affine quantisation of weights, the writing side (reading: core/weight_matrix.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/dtype.h"

namespace adder {

// Quantises one row. weights: [cols], group_size divides cols. Writes the packed row (cols * bits /
// 8 bytes, layout of MatrixSegment) and, per group, scale and bias as `dtype` (BF16, F16 or F32).
//
// Per group: the edge of larger magnitude is kept exactly representable, so that one end of the
// range loses nothing: scale = range / (2^bits - 1), signed so that edge = q0 * scale for a whole
// q0, and bias = edge (https://ml-explore.github.io/mlx, mlx.core.quantize). Codes are then chosen
// against the scale and bias as stored, after their rounding to `dtype`. Returns false, with the
// outputs unspecified, when a weight, scale or bias is not finite.
[[nodiscard]] bool QuantizeRow(std::span<const float> weights, int bits, int group_size,
                               DType dtype, std::byte* packed, std::byte* scales,
                               std::byte* biases);

}  // namespace adder
