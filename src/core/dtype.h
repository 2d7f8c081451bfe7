// Element types of checkpoint tensors, and the 16-bit float conversions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace adder {

enum class DType { kF64, kF32, kF16, kBF16, kI64, kI32, kI16, kI8, kU64, kU32, kU16, kU8, kBool };

// Bytes of one element.
size_t DTypeSize(DType dtype);
// The name used in safetensors headers, e.g. "BF16".
std::string_view DTypeName(DType dtype);
// Parses a safetensors dtype name. Returns false for an unknown name.
bool ParseDType(std::string_view name, DType& dtype);
inline bool IsFloat(DType dtype) { return dtype <= DType::kBF16; }

inline float BF16ToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
// Rounds to nearest, ties to even; NaN stays NaN.
inline uint16_t FloatToBF16(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  bits += 0x7fffu + ((bits >> 16) & 1u);
  return static_cast<uint16_t>(bits >> 16);
}
float F16ToFloat(uint16_t bits);
// Rounds to nearest, ties to even; overflow gives infinity.
uint16_t FloatToF16(float value);

// Reads element `index` of an array of float dtype as f32. `data` need not be aligned.
float LoadFloat(const void* data, DType dtype, size_t index);

}  // namespace adder
