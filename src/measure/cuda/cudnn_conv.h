// cuDNN's depthwise convolution, for comparison only: cuDNN is loaded when it is needed.
#pragma once

#include <cstdint>
#include <memory>

#include "core/dtype.h"
#include "cuda/device_memory.h"

namespace adder {

class CudnnLibrary;

// One position of a grouped convolution with a group per channel, over `taps` positions. Elements
// are `dtype` (f32, f16 or bf16); sums are f32.
class CudnnConv {
 public:
  // Throws Error when cuDNN refuses the shape. `library` and `stream` must outlive this.
  CudnnConv(const CudnnLibrary& library, int64_t channels, int64_t taps, DType dtype,
            const cuda::Stream& stream);
  ~CudnnConv();
  CudnnConv(const CudnnConv&) = delete;
  CudnnConv& operator=(const CudnnConv&) = delete;

  // window, filter [channels][taps]; output [channels]. Device memory; does not wait.
  void Run(const void* window, const void* filter, void* output);

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Throws Error when cuDNN cannot be loaded, or when this build lacks its headers.
std::shared_ptr<const CudnnLibrary> LoadCudnn();

}  // namespace adder
