// Sums over the threads of a warp or of a block, always in the same order.
#pragma once

namespace adder::cuda {

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffffu, x, offset);
  return x;
}

// Every thread of a block of whole warps calls this and gets the sum. `of_warps` is in shared
// memory, one float per warp; a barrier must lie between two uses of it.
__device__ __forceinline__ float BlockSum(float x, float* of_warps) {
  x = WarpSum(x);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  float sum = 0;
  for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += of_warps[w];
  return sum;
}

}  // namespace adder::cuda
