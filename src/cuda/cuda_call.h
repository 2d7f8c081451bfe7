// Checking calls of the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

namespace adder::cuda {

// Throws Error with CUDA's own description when `status` is not success. `call` names what was
// called, for example "cudaMalloc of 12 bytes".
void Check(cudaError_t status, std::string_view call);

// Number of CUDA devices this process can use; 0 also where there is no driver.
int DeviceCount();

}  // namespace adder::cuda
