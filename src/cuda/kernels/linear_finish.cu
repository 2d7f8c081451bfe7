// A thread per result; a block owns results of one row.
#include <cuda_bf16.h>

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_finish.h"

namespace adder::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) FinishKernel(const __grid_constant__ FinishParams p) {
  PdlWait();
  PdlTrigger();
  const int row = static_cast<int>(blockIdx.y);
  const int at = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (at >= p.width) return;
  const float* products = p.products + static_cast<long long>(row) * p.products_stride;
  const auto value = [&](int index) {
    float z = p.input_scale * products[index];
    if (p.bias != nullptr) z += p.bias[index];
    float factor = 1;
#pragma unroll
    for (int i = kMostRowFactors - 1; i >= 0; --i) {
      if (i < p.factor_count && index < p.factor_ends[i]) factor = p.factors[i];
    }
    z *= factor;
    if (p.addend != nullptr) z += p.addend[static_cast<long long>(row) * p.addend_stride + index];
    return z;
  };
  float y = value(at);
  if (p.gated || p.activates) y = Activate(p.activation, y);
  if (p.gated) y *= value(p.width + at);
  if (p.row_gate != nullptr) {
    y *= Sigmoid(p.row_gate[static_cast<long long>(row) * p.row_gate_stride]);
  }
  if (p.factor != nullptr) y *= p.factor[static_cast<long long>(row) * p.factor_stride + at];
  float* to = p.output + static_cast<long long>(row) * p.output_stride + at;
  y = fmaf(p.scale, y, p.adds ? *to : 0.0f);
  if (p.cap > 0) y = p.cap * tanhf(y / p.cap);
  *to = y;
  if (p.rounded_output != nullptr) {
    p.rounded_output[static_cast<long long>(row) * p.rounded_output_stride + at] =
        __bfloat16_as_ushort(__float2bfloat16_rn(y));
  }
}

}  // namespace

void LaunchFinish(const FinishParams& params, cudaStream_t stream) {
  if (params.width == 0 || params.rows == 0) return;
  Launch("the kernel that finishes products", FinishKernel,
         dim3(static_cast<unsigned>((params.width + kThreads - 1) / kThreads),
              static_cast<unsigned>(params.rows)),
         dim3(kThreads), 0, stream, params);
}

}  // namespace adder::cuda
