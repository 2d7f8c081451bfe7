// Rounding rows to bf16, where the kernel before left no rounded copy: a thread per value.
#include <cuda_bf16.h>

#include "cuda/kernels/batch_linear.h"
#include "cuda/kernels/launch.cuh"

namespace adder::cuda {
namespace {

__global__ void RoundKernel(const float* input, int input_stride, const int* input_rows, int width,
                            uint16_t* output, int output_stride) {
  PdlWait();
  PdlTrigger();
  const int row = static_cast<int>(blockIdx.y);
  const int from = input_rows == nullptr ? row : input_rows[row];
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= width) return;
  output[static_cast<long long>(row) * output_stride + i] = __bfloat16_as_ushort(
      __float2bfloat16_rn(input[static_cast<long long>(from) * input_stride + i]));
}

}  // namespace

void LaunchRound(const float* input, int input_stride, const int* input_rows, int rows, int width,
                 uint16_t* output, int output_stride, cudaStream_t stream) {
  constexpr int kThreads = 256;
  Launch(
      "the rounding kernel", RoundKernel,
      dim3(static_cast<unsigned>((width + kThreads - 1) / kThreads), static_cast<unsigned>(rows)),
      dim3(kThreads), 0, stream, input, input_stride, input_rows, width, output, output_stride);
}

}  // namespace adder::cuda
