// Blocks of a cluster that leave results in the shared memory of their first.
//
// Devices before compute capability 9.0 lack clusters: there a cluster is one block, and all of
// this means the block itself. A block may be written to as soon as it has begun, so every block
// calls ClusterArrive when it begins and ClusterWait before its first StoreInFirst.
#pragma once

#include <cstring>

namespace adder::cuda {

// The two halves of a barrier of all threads of the cluster.
__device__ __forceinline__ void ClusterArrive() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}
__device__ __forceinline__ void ClusterWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Writes 8 bytes where `to` lies in the shared memory of the cluster's first block.
template <class T>
__device__ __forceinline__ void StoreInFirst(T* to, T value) {
  static_assert(sizeof(T) == 8);
#if __CUDA_ARCH__ >= 900
  unsigned address = static_cast<unsigned>(__cvta_generic_to_shared(to));
  long long bits;
  memcpy(&bits, &value, sizeof(bits));
  asm volatile("mapa.shared::cluster.u32 %0, %0, 0;" : "+r"(address));
  asm volatile("st.shared::cluster.b64 [%0], %1;" ::"r"(address), "l"(bits) : "memory");
#else
  *to = value;
#endif
}

}  // namespace adder::cuda
