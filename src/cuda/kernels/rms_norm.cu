// One block per row and group: sum of squares over warps and shared memory, then the scaled row.
#include <cuda_bf16.h>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rms_norm.h"

namespace adder::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void RmsNormKernel(const __grid_constant__ RmsNormParams p) {
  __shared__ float sums[kThreads / 32];
  PdlWait();
  PdlTrigger();
  const int row = static_cast<int>(blockIdx.x);
  const int size = p.width / p.groups;
  const int begin = static_cast<int>(blockIdx.y) * size;
  const int from = p.input_rows == nullptr ? row : p.input_rows[row];
  const float* x = p.input + static_cast<long long>(from) * p.stride + begin;
  float sum = 0;
  for (int i = threadIdx.x; i < size; i += kThreads) sum = fmaf(x[i], x[i], sum);
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum = 0;
  for (float part : sums) sum += part;
  const float factor = rsqrtf(sum / static_cast<float>(size) + p.eps);
  float* out = p.output + static_cast<long long>(row) * p.stride + begin;
  uint16_t* rounded =
      p.rounded_output == nullptr
          ? nullptr
          : p.rounded_output + static_cast<long long>(row) * p.rounded_stride + begin;
  for (int i = threadIdx.x; i < size; i += kThreads) {
    const float y = x[i] * factor * p.weight[begin + i];
    out[i] = y;
    if (rounded != nullptr) rounded[i] = __bfloat16_as_ushort(__float2bfloat16_rn(y));
  }
}

}  // namespace

void LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream) {
  Launch("the RMSNorm kernel", RmsNormKernel,
         dim3(static_cast<unsigned>(params.rows), static_cast<unsigned>(params.groups)),
         dim3(kThreads), 0, stream, params);
}

}  // namespace adder::cuda
