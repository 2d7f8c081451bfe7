#include "checkpoint/affine_quantization.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace adder {
namespace {

// Stores `value` as element `index` of an array of `dtype` and returns what a reader will see.
float StoreFloat(float value, DType dtype, std::byte* data, size_t index) {
  if (dtype == DType::kF32) {
    std::memcpy(data + index * 4, &value, 4);
    return value;
  }
  const uint16_t bits = dtype == DType::kBF16 ? FloatToBF16(value) : FloatToF16(value);
  std::memcpy(data + index * 2, &bits, 2);
  return dtype == DType::kBF16 ? BF16ToFloat(bits) : F16ToFloat(bits);
}

}  // namespace

bool QuantizeRow(std::span<const float> weights, int bits, int group_size, DType dtype,
                 std::byte* packed, std::byte* scales, std::byte* biases) {
  if (!std::all_of(weights.begin(), weights.end(), [](float w) { return std::isfinite(w); })) {
    return false;
  }
  const size_t cols = weights.size();
  const size_t group = static_cast<size_t>(group_size);
  const float largest_code = static_cast<float>((1u << bits) - 1u);
  std::memset(packed, 0, cols * static_cast<size_t>(bits) / 8);
  for (size_t g = 0; g * group < cols; ++g) {
    const std::span<const float> w = weights.subspan(g * group, group);
    const auto [low, high] = std::minmax_element(w.begin(), w.end());
    const bool low_is_edge = std::abs(*low) > std::abs(*high);
    const float edge = low_is_edge ? *low : *high;
    float scale = std::max((*high - *low) / largest_code, 1e-7f);
    if (!low_is_edge) scale = -scale;
    const float edge_code = std::nearbyint(edge / scale);
    if (edge_code != 0.0f) scale = edge / edge_code;
    const float bias = edge_code == 0.0f ? 0.0f : edge;
    const float stored_scale = StoreFloat(scale, dtype, scales, g);
    const float stored_bias = StoreFloat(bias, dtype, biases, g);
    if (!std::isfinite(stored_scale) || !std::isfinite(stored_bias)) return false;
    for (size_t i = 0; i < group; ++i) {
      // A scale that underflows to zero in f16 leaves the bias alone to represent the group.
      const float steps = stored_scale == 0.0f ? 0.0f : (w[i] - stored_bias) / stored_scale;
      const unsigned code =
          static_cast<unsigned>(std::clamp(std::nearbyint(steps), 0.0f, largest_code));
      const size_t bit = (g * group + i) * static_cast<size_t>(bits);
      const unsigned shifted = code << (bit % 8);
      packed[bit / 8] |= static_cast<std::byte>(shifted);
      if (shifted > 0xffu) packed[bit / 8 + 1] |= static_cast<std::byte>(shifted >> 8);
    }
  }
  return true;
}

}  // namespace adder
