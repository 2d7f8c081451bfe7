// A thread per two neighbouring results, or per result of the rows that are scaled in place; a
// block owns results of one row.
#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/bf16_rows.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/ruled_rows.h"

namespace adder::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) RuledRowsKernel(const __grid_constant__ RuledRows p) {
  PdlWait();
  PdlTrigger();
  const int col = 2 * (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x));
  const long long row = blockIdx.y;
  if (col >= Bf16Stride(p.width)) return;
  const __nv_bfloat16* products = p.products + row * Bf16Stride(p.gated ? 2 * p.width : p.width);
  const auto value = [&](int index) {
    float z = __bfloat162float(products[index]);
    if (p.factors != nullptr) z *= p.factors[index];
    if (p.bias != nullptr) z += p.bias[index];
    return z;
  };
  float y[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (col + i >= p.width) continue;
    y[i] = Activate(p.activation, value(col + i));
    if (p.gated) y[i] *= value(p.width + col + i);
    if (p.times != nullptr) y[i] *= p.times[row * p.times_stride + col + i];
  }
  *reinterpret_cast<__nv_bfloat162*>(p.output + row * Bf16Stride(p.width) + col) =
      __floats2bfloat162_rn(y[0], y[1]);
}

__global__ void __launch_bounds__(kThreads)
    ScaleRowsKernel(const float* factors, const float* bias, float scale, int width, float* output,
                    int stride) {
  PdlWait();
  PdlTrigger();
  const int col = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (col >= width) return;
  float* out = output + static_cast<long long>(blockIdx.y) * stride + col;
  *out = scale * fmaf(factors[col], *out, bias == nullptr ? 0.0f : bias[col]);
}

dim3 GridOf(int items, int rows) {
  return dim3(static_cast<unsigned>((items + kThreads - 1) / kThreads),
              static_cast<unsigned>(rows));
}

}  // namespace

void LaunchRuledRows(const RuledRows& params, cudaStream_t stream) {
  Launch("the kernel that activates rows", RuledRowsKernel,
         GridOf(Bf16Stride(params.width) / 2, params.rows), dim3(kThreads), 0, stream, params);
}

void LaunchScaleRows(const float* factors, const float* bias, float scale, int rows, int width,
                     float* output, int stride, cudaStream_t stream) {
  Launch("the kernel that scales rows", ScaleRowsKernel, GridOf(width, rows), dim3(kThreads), 0,
         stream, factors, bias, scale, width, output, stride);
}

}  // namespace adder::cuda
