// One thread per channel: window and weights into registers, then PdlWait, then the newest input,
// the multiply-adds, and the ring's row of this position. The ring has one row more than the
// window, so that no thread reads what another writes. Decode steps do the same within their fused
// kernels.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/error.h"
#include "cuda/kernels/conv_step.cuh"
#include "cuda/kernels/launch.cuh"
#include "measure/cuda/conv_kernels.h"

namespace adder {
namespace {

constexpr int kThreads = 128;
constexpr int kMaxTaps = 8;

template <class T, int kTaps>
__global__ void __launch_bounds__(kThreads)
    ConvStepKernel(const __grid_constant__ ConvStepParams p) {
  const int channel = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (channel >= p.channels) return;
  // Known at compile time for the usual windows: short code.
  const int taps = kTaps == kMaxTaps ? p.taps : kTaps;
  T* ring = static_cast<T*>(p.ring);
  cuda::ConvStep<kTaps> conv;
#pragma unroll
  for (int tap = 0; tap < kTaps; ++tap) {
    if (tap >= taps) break;
    conv.weights[tap] = p.weight[tap * p.channels + channel];
    if (tap + 1 < taps) {
      const int row = (p.position + 1 + tap) % taps;
      conv.past[tap] = static_cast<float>(ring[row * p.channels + channel]);
    }
  }
  const float bias = p.bias[channel];
  cuda::PdlWait();
  cuda::PdlTrigger();
  const T newest = static_cast<const T*>(p.input)[channel];
  const float sum = conv.Apply(bias, static_cast<float>(newest), taps);
  ring[p.position % taps * p.channels + channel] = newest;
  static_cast<T*>(p.output)[channel] = static_cast<T>(sum / (1.0f + expf(-sum)));
}

template <class T>
void LaunchAs(const ConvStepParams& params, cudaStream_t stream) {
  const auto launch = [&](auto kernel) {
    cuda::Launch("the convolution step kernel", kernel,
                 dim3(static_cast<unsigned>((params.channels + kThreads - 1) / kThreads)),
                 dim3(kThreads), 0, stream, params);
  };
  if (params.taps == 4) return launch(ConvStepKernel<T, 4>);
  if (params.taps == 3) return launch(ConvStepKernel<T, 3>);
  launch(ConvStepKernel<T, kMaxTaps>);
}

}  // namespace

void LaunchConvStep(const ConvStepParams& params, DType dtype, cudaStream_t stream) {
  if (params.taps < 1 || params.taps > kMaxTaps) {
    Fail("The convolution step kernel holds 1 to ", kMaxTaps, " taps, not ", params.taps, ".");
  }
  switch (dtype) {
    case DType::kF32:
      return LaunchAs<float>(params, stream);
    case DType::kF16:
      return LaunchAs<__half>(params, stream);
    case DType::kBF16:
      return LaunchAs<__nv_bfloat16>(params, stream);
    default:
      Fail("The convolution step kernel has no form for ", DTypeName(dtype), ".");
  }
}

}  // namespace adder
