#include "cuda/kernels/launch.cuh"

namespace adder::cuda {

bool DeviceHasPdl() {
  static const bool has = [] {
    int device = 0;
    int major = 0;
    Check(cudaGetDevice(&device), "cudaGetDevice");
    Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "cudaDeviceGetAttribute");
    return major >= 9;
  }();
  return has;
}

}  // namespace adder::cuda
