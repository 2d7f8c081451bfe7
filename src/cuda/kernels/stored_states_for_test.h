// Slots with states of 16-bit elements, for tests of kernels.
#pragma once

#include <cmath>
#include <cstring>
#include <vector>

#include "core/dtype.h"

namespace adder::cuda {

// Where the states lie: `count` elements from float `offset` on in each slot of `slot` floats.
struct StatesInSlots {
  size_t slot = 0;
  size_t offset = 0;
  size_t count = 0;
  DType dtype = DType::kF32;

  bool narrow() const { return dtype != DType::kF32; }

  // Calls visit(first float of a slot's states) for each slot.
  template <class Visit>
  void ForEach(std::vector<float>& slots, Visit visit) const {
    if (!narrow()) return;
    for (size_t at = offset; at < slots.size(); at += slot) visit(slots.data() + at);
  }
  // f32 states become states of the dtype, packed at the beginning of their place. What is behind
  // stays, to be watched.
  std::vector<float> Packed(std::vector<float> slots) const {
    ForEach(slots, [this](float* states) {
      std::vector<uint16_t> packed;
      for (size_t i = 0; i < count; ++i) {
        packed.push_back(dtype == DType::kF16 ? FloatToF16(states[i]) : FloatToBF16(states[i]));
      }
      std::memcpy(states, packed.data(), packed.size() * sizeof(uint16_t));
    });
    return slots;
  }
  // The same back.
  std::vector<float> Widened(std::vector<float> slots) const {
    ForEach(slots, [this](float* states) {
      const std::vector<float> packed(states, states + (count + 1) / 2);
      for (size_t i = 0; i < count; ++i) states[i] = LoadFloat(packed.data(), dtype, i);
    });
    return slots;
  }
  // Of each slot, the floats behind packed states to the end of their place.
  std::vector<float> Behind(std::vector<float> slots) const {
    std::vector<float> behind;
    ForEach(slots, [&](const float* states) {
      behind.insert(behind.end(), states + (count + 1) / 2, states + count);
    });
    return behind;
  }
  // What rounding to the nearest changes a value by at most.
  double HalfStep(double value) const {
    if (!narrow()) return 0;
    const int bits = dtype == DType::kF16 ? 11 : 8;
    const int least = dtype == DType::kF16 ? -13 : -125;
    const int exponent = value == 0 ? least : std::max(std::ilogb(value) + 1, least);
    return std::ldexp(0.5, exponent - bits);
  }
};

}  // namespace adder::cuda
