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

int DeviceSharedBytes() {
  static const int bytes = [] {
    int device = 0;
    int most = 0;
    Check(cudaGetDevice(&device), "cudaGetDevice");
    Check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device),
          "cudaDeviceGetAttribute");
    return most - 1024;
  }();
  return bytes;
}

}  // namespace adder::cuda
