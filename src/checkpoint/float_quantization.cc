#include "checkpoint/float_quantization.h"

#include <algorithm>
#include <cmath>

#include "core/small_float.h"

namespace adder {
namespace {

template <class Encode>
void EncodeGroup(std::span<const float> weights, float scale, int bits, const Encode& encode,
                 std::byte* packed) {
  for (size_t i = 0; i < weights.size(); ++i) {
    const unsigned code = scale == 0.0f ? 0u : encode(weights[i] / scale);
    if (bits == 8) {
      packed[i] = static_cast<std::byte>(code);
    } else if (i % 2 == 0) {
      packed[i / 2] = static_cast<std::byte>(code);
    } else {
      packed[i / 2] |= static_cast<std::byte>(code << 4);
    }
  }
}

}  // namespace

bool QuantizeFloatRow(std::span<const float> weights, QuantizationMode mode, std::byte* packed,
                      std::byte* scales) {
  const int bits = ModeBits(mode);
  const auto group = static_cast<size_t>(ModeGroupSize(mode));
  const float largest_number = bits == 4 ? kLargestE2M1 : kLargestE4M3;
  for (size_t g = 0; g * group < weights.size(); ++g) {
    const std::span<const float> w = weights.subspan(g * group, group);
    float largest = 0;
    for (const float weight : w) {
      if (!std::isfinite(weight)) return false;
      largest = std::max(largest, std::abs(weight));
    }
    const float exact = largest / largest_number;
    float scale = 0;
    uint8_t code = 0;
    if (mode == QuantizationMode::kNvfp4) {
      if (exact > kLargestE4M3) return false;
      code = FloatToE4M3(exact);
      scale = E4M3ToFloat(code);
    } else {
      code = FloatToE8M0Up(exact);
      scale = E8M0ToFloat(code);
      // Readers refuse scales whose largest product overflows.
      if (!std::isfinite(scale * largest_number)) return false;
    }
    scales[g] = static_cast<std::byte>(code);
    std::byte* to = packed + g * group * static_cast<size_t>(bits) / 8;
    if (bits == 4) {
      EncodeGroup(w, scale, bits, FloatToE2M1, to);
    } else {
      EncodeGroup(w, scale, bits, FloatToE4M3, to);
    }
  }
  return true;
}

}  // namespace adder
