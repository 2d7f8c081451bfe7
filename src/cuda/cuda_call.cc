#include "cuda/cuda_call.h"

#include "core/error.h"

namespace adder::cuda {

void Check(cudaError_t status, std::string_view call) {
  if (status == cudaSuccess) return;
  // Errors that do not stick to the context must not surface in the next call.
  cudaGetLastError();
  if (status == cudaErrorMemoryAllocation) {
    Fail("The GPU is out of memory (", call,
         "). Use a smaller model, fewer or shorter sequences, or --device cpu.");
  }
  Fail("CUDA failed in ", call, ": ", cudaGetErrorString(status), " (", cudaGetErrorName(status),
       ").");
}

int DeviceCount() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    cudaGetLastError();
    return 0;
  }
  return count;
}

}  // namespace adder::cuda
