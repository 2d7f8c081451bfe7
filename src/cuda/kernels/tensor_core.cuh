// Moving bf16 tiles between global memory, shared memory and tensor-core operands.
//
// A tile in shared memory is [rows][kColumns] bf16 in units of eight values (16 bytes); the units
// of a row are permuted so that eight consecutive rows of one unit lie in different banks.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include "cuda/cuda_call.h"
#include "cuda/kernels/linear_fragments.cuh"

namespace adder::cuda {

__device__ __forceinline__ unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Byte offset of a unit of a tile.
template <int kColumns>
__device__ __forceinline__ int UnitOffset(int row, int unit) {
  static_assert(kColumns == 32 || kColumns % 64 == 0);
  const int moved = kColumns == 32 ? unit ^ (row / 2 & 3) : unit ^ (row & 7);
  return row * kColumns * 2 + moved * 16;
}

// Four 8 x 8 matrices; lane i gives the address of row i % 8 of matrix i / 8.
__device__ __forceinline__ void LoadMatrices(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}
__device__ __forceinline__ void LoadMatricesTransposed(unsigned (&out)[4], unsigned address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(address));
}

// The A operand (16 x 16) at a row and a unit of a tile whose rows are A's rows.
template <int kColumns>
__device__ __forceinline__ void LoadA(unsigned (&out)[4], unsigned tile, int row, int unit,
                                      int lane) {
  LoadMatrices(out, tile + UnitOffset<kColumns>(row + lane % 16, unit + lane / 16));
}
// The A operand from a tile whose rows are A's columns; `row` and `unit` are of the tile.
template <int kColumns>
__device__ __forceinline__ void LoadATransposed(unsigned (&out)[4], unsigned tile, int row,
                                                int unit, int lane) {
  LoadMatricesTransposed(
      out, tile + UnitOffset<kColumns>(row + lane % 8 + lane / 16 * 8, unit + lane / 8 % 2));
}
// Two B operands (16 x 8 each: out[0..1] and out[2..3]) from a tile whose rows are B's columns.
template <int kColumns>
__device__ __forceinline__ void LoadB(unsigned (&out)[4], unsigned tile, int row, int unit,
                                      int lane) {
  LoadMatrices(out,
               tile + UnitOffset<kColumns>(row + lane % 8 + lane / 16 * 8, unit + lane / 8 % 2));
}
// The same from a tile whose rows are B's rows; the second operand is that of the next unit.
template <int kColumns>
__device__ __forceinline__ void LoadBTransposed(unsigned (&out)[4], unsigned tile, int row,
                                                int unit, int lane) {
  LoadMatricesTransposed(out, tile + UnitOffset<kColumns>(row + lane % 16, unit + lane / 16));
}

// Both operands of LoadB against one A.
__device__ __forceinline__ void MmaPair(float (&first)[4], float (&second)[4],
                                        const unsigned (&a)[4], const unsigned (&b)[4]) {
  const unsigned low[2] = {b[0], b[1]};
  const unsigned high[2] = {b[2], b[3]};
  Mma(first, a, low);
  Mma(second, a, high);
}

// Sixteen bytes to shared memory in the background; zeros when not `valid`.
__device__ __forceinline__ void CopyAsync(unsigned to, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
// The same for eight bytes.
__device__ __forceinline__ void CopyAsync8(unsigned to, const void* from, bool valid) {
  const int bytes = valid ? 8 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void CopyCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Waits until at most kPending groups of this thread are under way.
template <int kPending>
__device__ __forceinline__ void CopyWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// 2^x, flushing to zero far below.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Lets a kernel ask for so much dynamic shared memory.
template <class Kernel>
void AllowSharedMemory(Kernel kernel, size_t bytes) {
  // Beyond what every kernel may have, less what it may hold statically.
  if (bytes <= 40 * 1024) return;
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "cudaFuncSetAttribute");
}

}  // namespace adder::cuda
