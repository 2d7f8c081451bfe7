// Quantisation of weights to small floating-point numbers, MLX's modes mxfp4, mxfp8 and nvfp4: the
// writing side (reading: core/weight_matrix.h).
#pragma once

#include <cstddef>
#include <span>

#include "core/weight_matrix.h"

namespace adder {

// Quantises one row, whose size the mode's groups divide. Writes the codes (layout of
// MatrixSegment) and one byte of scale for each group.
//
// The scale is the group's largest magnitude over the largest number of the codes' format: the next
// power of two in the mx modes, so that nothing is cut off; the nearest E4M3 number in nvfp4, where
// it may be zero, and the group with it. Codes are the numbers nearest to weight / scale, halves to
// the even one, as MLX's GPU kernels choose them. Returns false, with the outputs unspecified, when
// a weight is not finite or too large for the mode.
[[nodiscard]] bool QuantizeFloatRow(std::span<const float> weights, QuantizationMode mode,
                                    std::byte* packed, std::byte* scales);

}  // namespace adder
