// Numbers of the attention step: pairs of bf16, and products of tiles on tensor cores.
#pragma once

#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {

// Two bf16 numbers, the first in the lower half.
__device__ __forceinline__ unsigned Pack(float first, float second) {
  unsigned pair;
  asm("cvt.rn.bf16x2.f32 %0, %2, %1;" : "=r"(pair) : "f"(first), "f"(second));
  return pair;
}
__device__ __forceinline__ float First(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float Second(unsigned pair) {
  return __uint_as_float(pair & 0xffff0000u);
}
// What rounding to `pair` left over.
__device__ __forceinline__ unsigned PackRest(float first, float second, unsigned pair) {
  return Pack(first - First(pair), second - Second(pair));
}

// sum += a b. a: {rows g, rows g + 8} of depth 2 t, 2 t + 1, then of depth 2 t + 8, 2 t + 9, of the
// lane 4 g + t.
__device__ __forceinline__ void Multiply(float (&sum)[4], const uint4& a, unsigned b0,
                                         unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ __forceinline__ unsigned& Word(uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

}  // namespace adder::cuda
