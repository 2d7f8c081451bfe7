// How elements of a recurrent state lie in memory: f32, f16 or bf16. Kernels hold them in f32
// registers, and round to nearest, ties to even, when they write. Beyond f16's range a finite
// element becomes f16's largest number: an infinity would stay in the state for ever.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "core/dtype.h"

namespace adder::cuda {

// Four neighbours, a single load.
template <class Stored>
using FourStored = std::conditional_t<std::is_same_v<Stored, float>, float4, uint2>;

// Two 16-bit elements in a word, the first in its low half.
template <class Stored>
__device__ __forceinline__ float2 WidenPair(unsigned pair) {
  if constexpr (std::is_same_v<Stored, __half>) {
    return __half22float2(reinterpret_cast<const __half2&>(pair));
  } else {
    return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
  }
}
template <class Stored>
__device__ __forceinline__ unsigned RoundPair(float first, float second) {
  unsigned pair;
  if constexpr (std::is_same_v<Stored, __half>) {
    asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
  }
  return pair;
}

template <class Stored>
__device__ __forceinline__ float4 WidenFour(const FourStored<Stored>& four) {
  if constexpr (std::is_same_v<Stored, float>) {
    return four;
  } else {
    const float2 low = WidenPair<Stored>(four.x);
    const float2 high = WidenPair<Stored>(four.y);
    return make_float4(low.x, low.y, high.x, high.y);
  }
}
template <class Stored>
__device__ __forceinline__ FourStored<Stored> RoundFour(const float4& four) {
  if constexpr (std::is_same_v<Stored, float>) {
    return four;
  } else {
    return make_uint2(RoundPair<Stored>(four.x, four.y), RoundPair<Stored>(four.z, four.w));
  }
}

template <class Stored>
__device__ __forceinline__ float WidenOne(Stored element) {
  return static_cast<float>(element);
}
template <class Stored>
__device__ __forceinline__ Stored RoundOne(float value) {
  if constexpr (std::is_same_v<Stored, float>) {
    return value;
  } else {
    const auto bits = static_cast<unsigned short>(RoundPair<Stored>(value, 0));
    return reinterpret_cast<const Stored&>(bits);
  }
}

// Calls with the type of elements of a dtype.
template <class Call>
auto WithStored(DType dtype, Call call) {
  if (dtype == DType::kF16) return call.template operator()<__half>();
  if (dtype == DType::kBF16) return call.template operator()<__nv_bfloat16>();
  return call.template operator()<float>();
}

}  // namespace adder::cuda
