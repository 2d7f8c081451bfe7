#include "core/dtype.h"

#include <array>
#include <cmath>
#include <cstring>

namespace adder {
namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  size_t size;
};

constexpr std::array<Entry, 13> kEntries{{{DType::kF64, "F64", 8},
                                          {DType::kF32, "F32", 4},
                                          {DType::kF16, "F16", 2},
                                          {DType::kBF16, "BF16", 2},
                                          {DType::kI64, "I64", 8},
                                          {DType::kI32, "I32", 4},
                                          {DType::kI16, "I16", 2},
                                          {DType::kI8, "I8", 1},
                                          {DType::kU64, "U64", 8},
                                          {DType::kU32, "U32", 4},
                                          {DType::kU16, "U16", 2},
                                          {DType::kU8, "U8", 1},
                                          {DType::kBool, "BOOL", 1}}};

template <class T>
T LoadUnaligned(const void* data, size_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + index * sizeof(T), sizeof(T));
  return value;
}

}  // namespace

size_t DTypeSize(DType dtype) { return kEntries[static_cast<size_t>(dtype)].size; }

std::string_view DTypeName(DType dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

bool ParseDType(std::string_view name, DType& dtype) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) {
      dtype = entry.dtype;
      return true;
    }
  }
  return false;
}

float F16ToFloat(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fu;
  const uint32_t mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign ? -magnitude : magnitude;
  }
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t FloatToF16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
  if (magnitude >= 0x47800000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {
    // Subnormal: a multiple of 2^-24; nearbyint rounds ties to even.
    const float scaled = std::ldexp(std::bit_cast<float>(magnitude), 24);
    return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)));
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  // Rounding may carry into the exponent and from there into infinity, which is what IEEE asks for.
  return static_cast<uint16_t>(sign | ((rounded >> 13) - (112u << 10)));
}

float LoadFloat(const void* data, DType dtype, size_t index) {
  switch (dtype) {
    case DType::kF64:
      return static_cast<float>(LoadUnaligned<double>(data, index));
    case DType::kF32:
      return LoadUnaligned<float>(data, index);
    case DType::kF16:
      return F16ToFloat(LoadUnaligned<uint16_t>(data, index));
    case DType::kBF16:
      return BF16ToFloat(LoadUnaligned<uint16_t>(data, index));
    default:
      return 0.0f;
  }
}

}  // namespace adder
