// Warpgroup matrix instructions, and copies of tensors into shared memory with the barriers that
// tell of their arrival. Device code only where it is compiled for compute capability 9.0 with its
// own features (sm_90a).
#pragma once

#include <cuda.h>

#include <cstdint>

namespace adder::cuda {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d [64 x kTokens] = A [64 x 16] x B [16 x kTokens], plus d where `more` is not 0, by the four
// warps of a warpgroup: each has 16 rows of A and d, in the layouts of mma.m16n8k16. `tokens`
// describes B: see TokensInShared. Asynchronous: between FenceRegisters and WaitProducts neither d
// nor a may be touched.
template <int kTokens>
__device__ __forceinline__ void MultiplyGroup(float (&d)[kTokens / 2], uint64_t weights,
                                              uint64_t tokens, int more) {
  static_assert(kTokens == 16 || kTokens == 32 || kTokens == 64 || kTokens == 128);
  if constexpr (kTokens == 16) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %10, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7"
        "}, %8, %9, p, 1, 1, 0, 0;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7])
        : "l"(weights), "l"(tokens), "r"(more));
  } else if constexpr (kTokens == 32) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %18, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
        "}, %16, %17, p, 1, 1, 0, 0;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15])
        : "l"(weights), "l"(tokens), "r"(more));
  } else if constexpr (kTokens == 64) {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, p, 1, 1, 0, 0;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "l"(weights), "l"(tokens), "r"(more));
  } else {
    asm volatile(
        "{.reg .pred p; setp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
        "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
        "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
        "%62, %63"
        "}, %64, %65, p, 1, 1, 0, 0;}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
          "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
          "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
          "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]),
          "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]),
          "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]),
          "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]),
          "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
          "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]),
          "+f"(d[63])
        : "l"(weights), "l"(tokens), "r"(more));
  }
}
__device__ __forceinline__ void FenceRegisters() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most kPending of the committed groups of products are under way.
template <int kPending>
__device__ __forceinline__ void WaitProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Makes what this thread has stored in shared memory visible to products; a barrier must follow.
__device__ __forceinline__ void FenceStores() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// The operand of 16 columns that begin at shared address `at`, rows of weights or of tokens: rows
// of 128 bytes whose 16-byte pieces are permuted by the row's number modulo 8
// (CU_TENSOR_MAP_SWIZZLE_128B), in groups of eight rows on 1024-byte boundaries.
__device__ __forceinline__ uint64_t OperandInShared(unsigned at) {
  constexpr uint64_t kPermuted128 = uint64_t{1} << 62;
  constexpr uint64_t kGroupOfRows = uint64_t{1024 / 16} << 32;
  return kPermuted128 | kGroupOfRows | uint64_t{1} << 16 | (at & 0x3ffffu) >> 4;
}

// A barrier whose phases so many arrivals, and the bytes that they announce, complete.
__device__ __forceinline__ void InitArrival(unsigned barrier, int count = 1) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
__device__ __forceinline__ void Arrive(unsigned barrier) {
  asm volatile("{.reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0];}" ::"r"(barrier)
               : "memory");
}
// Makes barriers known to copies: after InitArrival, before the block's barrier.
__device__ __forceinline__ void FenceArrivals() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void ExpectBytes(unsigned barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
// `phase` counts from 0; only the present one or the one before may be asked for.
__device__ __forceinline__ void WaitArrival(unsigned barrier, int phase) {
  asm volatile(
      "{.reg .pred p;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;}" ::"r"(barrier),
      "r"(phase & 1)
      : "memory");
}
// Stores in any block of the cluster, telling `barrier` there: addresses as RemoteAddress gives
// them. Unlike a barrier of the cluster, this waits for nothing.
__device__ __forceinline__ void StoreAndTell(unsigned to, float4 value, unsigned barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(to),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(barrier)
      : "memory");
}
__device__ __forceinline__ void StoreAndTell(unsigned to, float value, unsigned barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(to),
      "f"(value), "r"(barrier)
      : "memory");
}

__device__ __forceinline__ void PrefetchMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
// Copies `bytes`, a multiple of 16, as both addresses are.
__device__ __forceinline__ void CopyBytes(unsigned to, const void* from, int bytes,
                                          unsigned barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
      "[%3];" ::"r"(to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
// Brings as many bytes to the L2 cache.
__device__ __forceinline__ void PrefetchBytes(const void* from, int bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
// Copies the map's box whose first element is at `column` of `row`.
__device__ __forceinline__ void CopyBox(unsigned to, const CUtensorMap* map, int column, int row,
                                        unsigned barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
      "{%2, %3}], [%4];" ::"r"(to),
      "l"(map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}

#endif

}  // namespace adder::cuda
