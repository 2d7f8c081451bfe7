// Launching kernels with programmatic dependent launch, and the device side of it.
//
// Protocol of every kernel here: what does not depend on the kernels just before (weights, states
// written by earlier steps) may be loaded first; then PdlWait, which returns when the kernel before
// has ended and its writes are visible; then PdlTrigger, which lets the next kernel start its own
// first part.
//
// Matrix-vector kernels of small matrices, RWKV-7's step and Mamba-2 steps of large states trigger
// before they wait, so a chain of them may run ahead of the kernels it depends on, though never of
// their results: every kernel ends after the one before it. The kernels that begin a step
// (embedding) and end it (sampling), like all others, trigger after the wait or not at all: so the
// first part of any kernel of a step runs after the end of the step before, and may read the
// states, caches and tables it wrote.
#pragma once

#include <cuda_runtime.h>

#include <utility>

#include "cuda/cuda_call.h"

namespace adder::cuda {

__device__ __forceinline__ void PdlWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ void PdlTrigger() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// For what is used after PdlWait but known before: keeps the compiler from reading it only there,
// where the first touch of a line of kernel parameters costs as much as a memory access.
template <class T>
__device__ __forceinline__ void ReadyBeforeWait(T* pointer) {
  asm volatile("" ::"l"(pointer));
}
__device__ __forceinline__ void ReadyBeforeWait(float value) { asm volatile("" ::"f"(value)); }

// Whether the current device knows programmatic dependent launch and thread block clusters: both
// came with compute capability 9.0.
bool DeviceHasPdl();
inline bool DeviceHasClusters() { return DeviceHasPdl(); }
// Dynamic shared memory that a block may have, with room for 1 KB of static.
int DeviceSharedBytes();

// Launches clusters of `cluster` blocks; without clusters the device must be asked for one block.
template <class... KernelArgs, class... Args>
void LaunchClusters(const char* name, void (*kernel)(KernelArgs...), dim3 grid, dim3 block,
                    dim3 cluster, size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {cluster.x, cluster.y, cluster.z};
  config.attrs = attributes;
  config.numAttrs = !DeviceHasPdl() ? 0 : cluster.x * cluster.y * cluster.z == 1 ? 1 : 2;
  Check(cudaLaunchKernelEx(&config, kernel, KernelArgs(args)...), name);
}

template <class... KernelArgs, class... Args>
void Launch(const char* name, void (*kernel)(KernelArgs...), dim3 grid, dim3 block,
            size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  LaunchClusters(name, kernel, grid, block, dim3(1), shared_bytes, stream,
                 std::forward<Args>(args)...);
}

}  // namespace adder::cuda
