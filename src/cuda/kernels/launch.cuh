// Launching kernels with programmatic dependent launch, and the device side of it.
//
// Protocol of every kernel here: what does not depend on the kernel before (weights, states written
// by earlier steps) may be loaded first; then PdlWait, which returns when the kernel before has
// ended and its writes are visible; then PdlTrigger, which lets the next kernel start its own first
// part. Because each kernel triggers only after its wait, a kernel's first part runs after the end
// of the last but one, so it may read whatever was written that early.
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

// Whether the current device knows programmatic dependent launch.
bool DeviceHasPdl();

// `cluster`: blocks, consecutive along x, that can read each other's shared memory; more than one
// needs compute capability 9.
template <class... KernelArgs, class... Args>
void LaunchClustered(const char* name, void (*kernel)(KernelArgs...), dim3 grid, dim3 block,
                     unsigned cluster, size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (DeviceHasPdl()) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = 1;
    attribute.val.clusterDim.z = 1;
  }
  Check(cudaLaunchKernelEx(&config, kernel, KernelArgs(args)...), name);
}

template <class... KernelArgs, class... Args>
void Launch(const char* name, void (*kernel)(KernelArgs...), dim3 grid, dim3 block,
            size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  LaunchClustered(name, kernel, grid, block, 1, shared_bytes, stream, std::forward<Args>(args)...);
}

}  // namespace adder::cuda
