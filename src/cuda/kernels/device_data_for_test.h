// Arrays in device memory for tests and benchmarks of kernels.
#pragma once

#include <cuda_runtime_api.h>

#include <random>
#include <vector>

#include "cuda/cuda_call.h"
#include "cuda/device_memory.h"

namespace adder::cuda {

template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(const std::vector<T>& values)
      : memory_(values.size() * sizeof(T)), size_(values.size()) {
    Check(cudaMemcpy(memory_.data(), values.data(), memory_.bytes(), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    Arrive();
  }
  explicit DeviceArray(size_t zeros) : memory_(zeros * sizeof(T)), size_(zeros) {
    Check(cudaMemset(memory_.data(), 0, memory_.bytes()), "cudaMemset");
    Arrive();
  }
  T* data() const { return memory_.as<T>(); }
  size_t size() const { return size_; }
  std::vector<T> Download() const {
    std::vector<T> values(size_);
    Check(cudaMemcpy(values.data(), memory_.data(), memory_.bytes(), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return values;
  }

 private:
  // The tests' streams do not wait for what is still on its way.
  static void Arrive() { Check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

  DeviceMemory memory_;
  size_t size_;
};

inline std::vector<float> RandomFloats(unsigned seed, size_t count, float low = -1,
                                       float high = 1) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> uniform(low, high);
  std::vector<float> values(count);
  for (float& value : values) value = uniform(random);
  return values;
}

}  // namespace adder::cuda
