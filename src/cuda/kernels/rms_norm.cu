// One block per row and group: sum of squares over warps and shared memory, then the scaled row.
// The first kHeld elements of each thread, and their weights, stay in registers; the weights are
// loaded before PdlWait.
#include <cuda_bf16.h>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rms_norm.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeld = 4;

template <NormEpilogue kEpilogue>
__global__ void __launch_bounds__(kThreads) RmsNormKernel(const __grid_constant__ RmsNormParams p) {
  __shared__ float sums[kThreads / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x);
  const int size = p.width / p.groups;
  const int begin = static_cast<int>(blockIdx.y) * size;
  const float* weight = p.weight + begin;
  float weights[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = thread + i * kThreads;
    weights[i] = at < size ? weight[at] : 0.0f;
  }
  PdlWait();
  PdlTrigger();
  const int from = p.input_rows == nullptr ? row : p.input_rows[row];
  const float* x = p.input + static_cast<long long>(from) * p.stride + begin;
  float held[kHeld];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = thread + i * kThreads;
    held[i] = at < size ? x[at] : 0.0f;
    sum = fmaf(held[i], held[i], sum);
  }
  for (int i = thread + kHeld * kThreads; i < size; i += kThreads) sum = fmaf(x[i], x[i], sum);
  sum = BlockSum(sum, sums);
  const float factor = rsqrtf(sum / static_cast<float>(size) + p.eps);
  float* out = p.output + static_cast<long long>(row) * p.stride + begin;
  uint16_t* rounded =
      p.rounded_output == nullptr
          ? nullptr
          : p.rounded_output + static_cast<long long>(row) * p.rounded_stride + begin;
  const float* gate = kEpilogue == NormEpilogue::kGate
                          ? p.gate + static_cast<long long>(from) * p.gate_stride + begin
                          : nullptr;
  const auto store = [&](int at, float y) {
    if constexpr (kEpilogue == NormEpilogue::kAdd) y = fmaf(p.scale, y, out[at]);
    if constexpr (kEpilogue == NormEpilogue::kGate) y *= gate[at] / (1.0f + expf(-gate[at]));
    out[at] = y;
    if (rounded != nullptr) rounded[at] = __bfloat16_as_ushort(__float2bfloat16_rn(y));
  };
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = thread + i * kThreads;
    if (at < size) store(at, held[i] * factor * weights[i]);
  }
  for (int i = thread + kHeld * kThreads; i < size; i += kThreads) {
    store(i, x[i] * factor * weight[i]);
  }
}

}  // namespace

void LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream) {
  const auto kernel = params.epilogue == NormEpilogue::kAdd ? RmsNormKernel<NormEpilogue::kAdd>
                      : params.epilogue == NormEpilogue::kGate
                          ? RmsNormKernel<NormEpilogue::kGate>
                          : RmsNormKernel<NormEpilogue::kStore>;
  Launch("the RMSNorm kernel", kernel,
         dim3(static_cast<unsigned>(params.rows), static_cast<unsigned>(params.groups)),
         dim3(kThreads), 0, stream, params);
}

}  // namespace adder::cuda
