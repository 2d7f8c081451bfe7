#include "model/rope.h"

#include <cmath>

namespace adder {

std::vector<float> PlainFrequencies(double theta, int64_t rotary_dim) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < rotary_dim / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(rotary_dim);
    frequencies.push_back(static_cast<float>(std::pow(theta, exponent)));
  }
  return frequencies;
}

void FitRope(Rope& rope, int64_t positions) {
  const bool is_long = positions > rope.trained_positions;
  if (!rope.long_inverse_frequencies.empty()) {
    rope.inverse_frequencies =
        is_long ? rope.long_inverse_frequencies : rope.short_inverse_frequencies;
  }
  if (rope.dynamic_factor > 0) {
    double theta = rope.theta;
    // Two elements turn by the position itself, whatever the base.
    if (is_long && rope.rotary_dim > 2) {
      const auto dim = static_cast<double>(rope.rotary_dim);
      const double length =
          static_cast<double>(positions) / static_cast<double>(rope.trained_positions);
      theta *= std::pow(rope.dynamic_factor * length - (rope.dynamic_factor - 1), dim / (dim - 2));
    }
    rope.inverse_frequencies = PlainFrequencies(theta, rope.rotary_dim);
  }
}

}  // namespace adder
