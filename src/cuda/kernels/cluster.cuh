// Blocks of a cluster that use each other's shared memory.
//
// Devices before compute capability 9.0 lack clusters: there a cluster is one block, and all of
// this means the block itself. A block may be written to as soon as it has begun, so every block
// calls ClusterArrive when it begins and ClusterWait before it first uses
// another's memory.
#pragma once

#include <cstring>

namespace adder::cuda {

// The two halves of a barrier of all threads of the cluster.
__device__ __forceinline__ void ClusterArrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
// Of a barrier that hands nothing over: all threads have come so far.
__device__ __forceinline__ void ClusterArriveRelaxed() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void ClusterWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Where `local` lies in the shared memory of the cluster's block `rank`.
__device__ __forceinline__ unsigned RemoteAddress(const void* local, unsigned rank) {
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(local));
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
  return address;
}

// Where the cluster's block `rank` has what this one has at `shared`; in a launch without clusters
// only this block's own.
template <class T>
__device__ __forceinline__ T* AtRank(T* shared, int rank) {
#if __CUDA_ARCH__ >= 900
  asm("mapa.u64 %0, %1, %2;" : "=l"(shared) : "l"(shared), "r"(rank));
#endif
  return shared;
}

// Writes 8 bytes where `to` lies in the shared memory of the cluster's block `rank`.
template <class T>
__device__ __forceinline__ void StoreIn(T* to, T value, unsigned rank) {
  static_assert(sizeof(T) == 8);
#if __CUDA_ARCH__ >= 900
  long long bits;
  memcpy(&bits, &value, sizeof(bits));
  asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(RemoteAddress(to, rank)), "l"(bits)
               : "memory");
#else
  *to = value;
#endif
}

template <class T>
__device__ __forceinline__ void StoreInFirst(T* to, T value) {
  StoreIn(to, value, 0);
}

// What blocks of a cluster send to one of them, in which `barrier` is, without a barrier of all:
// sending waits for no other store. One thread of the block opens it for so many bytes, before a
// barrier of the cluster behind which they may be sent. Only for launches of clusters.
__device__ __forceinline__ void OpenMailbox(unsigned long long* barrier, int bytes) {
#if __CUDA_ARCH__ >= 900
  const auto address = static_cast<unsigned>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n"
      "fence.mbarrier_init.release.cluster;\n"
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address),
      "r"(bytes)
      : "memory");
#endif
}
// Writes where `to` lies in the block `rank`.
__device__ __forceinline__ void Send(float4* to, float4 value, unsigned long long* barrier,
                                     unsigned rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];" ::"r"(RemoteAddress(to, rank)),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(RemoteAddress(barrier, rank))
      : "memory");
#else
  *to = value;
#endif
}
__device__ __forceinline__ void Send(float2* to, float2 value, unsigned long long* barrier,
                                     unsigned rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
          "r"(RemoteAddress(to, rank)),
      "f"(value.x), "f"(value.y), "r"(RemoteAddress(barrier, rank))
      : "memory");
#else
  *to = value;
#endif
}
// Of every thread that reads what was sent, once.
__device__ __forceinline__ void WaitForMail(unsigned long long* barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
      "@!done bra WAIT;\n"
      "}" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(barrier)))
      : "memory");
#endif
}

// Reads where `from` lies in the shared memory of the block `rank`, which must not have ended.
__device__ __forceinline__ unsigned long long LoadFrom(const unsigned long long* from,
                                                       unsigned rank) {
#if __CUDA_ARCH__ >= 900
  unsigned long long value;
  asm volatile("ld.shared::cluster.u64 %0, [%1];"
               : "=l"(value)
               : "r"(RemoteAddress(from, rank))
               : "memory");
  return value;
#else
  return *from;
#endif
}
// atomicAdd in the first block's shared memory.
__device__ __forceinline__ unsigned long long AddInFirst(unsigned long long* to,
                                                         unsigned long long value) {
#if __CUDA_ARCH__ >= 900
  unsigned long long before;
  asm volatile("atom.relaxed.cluster.shared::cluster.add.u64 %0, [%1], %2;"
               : "=l"(before)
               : "r"(RemoteAddress(to, 0)), "l"(value)
               : "memory");
  return before;
#else
  return atomicAdd(to, value);
#endif
}

}  // namespace adder::cuda
