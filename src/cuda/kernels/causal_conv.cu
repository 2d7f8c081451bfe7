// A thread owns a channel of a run: of its one token (steps), or of every so-manieth one.
//
// Steps: phases (1) window and weights, which earlier steps wrote, are loaded; (2) PdlWait; (3) the
// sum, and u into the window's row that no step reads before it is overwritten again. Longer runs
// read u of their own earlier tokens from the input; since tokens are spread over blocks that also
// read the window, a second kernel writes it.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/conv_step.cuh"
#include "cuda/kernels/launch.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 128;

__device__ __forceinline__ float Newest(const CausalConvParams& p, const float* row, int channel) {
  const float x = row[p.x + channel];
  return p.gate_before < 0 ? x : x * row[p.gate_before + channel];
}

__device__ __forceinline__ void Store(const CausalConvParams& p, const float* input, int row,
                                      int channel, float y) {
  if (p.silu) y = ConvSilu(y);
  if (p.gate_after >= 0) y *= input[p.gate_after + channel];
  p.output[static_cast<long long>(row) * p.output_stride + channel] = y;
  if (p.rounded_output != nullptr) {
    p.rounded_output[static_cast<long long>(row) * p.rounded_output_stride + channel] =
        __bfloat16_as_ushort(__float2bfloat16_rn(y));
  }
}

// kTaps: d_conv, or kMostConvTaps for any.
template <int kTaps>
__global__ void __launch_bounds__(kThreads)
    ConvStepKernel(const __grid_constant__ CausalConvParams p) {
  const int channel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const int d_conv = kTaps == kMostConvTaps ? p.d_conv : kTaps;
  const SequenceRun run = p.runs[blockIdx.y];
  float* ring = run.recurrent + p.conv_offset;
  const bool inside = channel < p.channels;
  ConvStep<kTaps> conv;
  float bias = 0;
  if (inside) {
    conv.Load(p.weight, ring, d_conv, p.channels, channel, run.position);
    if (p.bias != nullptr) bias = p.bias[channel];
  }
  PdlWait();
  PdlTrigger();
  if (!inside) return;
  const float* input = p.input + static_cast<long long>(run.row) * p.input_stride;
  const float newest = Newest(p, input, channel);
  Store(p, input, run.row, channel, conv.Apply(bias, newest, d_conv));
  if (d_conv > 1) {
    ring[static_cast<long long>(run.position % d_conv) * p.channels + channel] = newest;
  }
}

__global__ void __launch_bounds__(kThreads)
    ConvRunKernel(const __grid_constant__ CausalConvParams p) {
  PdlWait();
  PdlTrigger();
  const int channel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (channel >= p.channels) return;
  const SequenceRun run = p.runs[blockIdx.z];
  const float* ring = run.recurrent + p.conv_offset;
  const float bias = p.bias == nullptr ? 0.0f : p.bias[channel];
  ConvStep<kMostConvTaps> conv;
#pragma unroll
  for (int tap = 0; tap < kMostConvTaps; ++tap) {
    if (tap < p.d_conv) {
      conv.weights[tap] = p.weight[static_cast<long long>(tap) * p.channels + channel];
    }
  }
  for (int i = static_cast<int>(blockIdx.y); i < run.tokens; i += static_cast<int>(gridDim.y)) {
    const float* input = p.input + static_cast<long long>(run.row + i) * p.input_stride;
#pragma unroll
    for (int tap = 0; tap < kMostConvTaps; ++tap) {
      if (tap + 1 >= p.d_conv) break;
      const int back = p.d_conv - 1 - tap;
      if (i >= back) {
        conv.past[tap] = Newest(p, input - static_cast<long long>(back) * p.input_stride, channel);
      } else {
        const int row = (run.position + i + 1 + tap) % p.d_conv;
        conv.past[tap] = ring[static_cast<long long>(row) * p.channels + channel];
      }
    }
    Store(p, input, run.row + i, channel, conv.Apply(bias, Newest(p, input, channel), p.d_conv));
  }
}

// After ConvRunKernel: the last inputs go to the window.
__global__ void __launch_bounds__(kThreads)
    ConvWindowKernel(const __grid_constant__ CausalConvParams p) {
  PdlWait();
  PdlTrigger();
  const int channel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (channel >= p.channels) return;
  const SequenceRun run = p.runs[blockIdx.y];
  float* ring = run.recurrent + p.conv_offset;
  for (int i = max(0, run.tokens - p.d_conv); i < run.tokens; ++i) {
    const float* input = p.input + static_cast<long long>(run.row + i) * p.input_stride;
    ring[static_cast<long long>((run.position + i) % p.d_conv) * p.channels + channel] =
        Newest(p, input, channel);
  }
}

}  // namespace

void LaunchCausalConv(const CausalConvParams& params, int most_tokens, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((params.channels + kThreads - 1) / kThreads);
  const auto runs = static_cast<unsigned>(params.run_count);
  if (most_tokens == 1) {
    const auto kernel = params.d_conv == 3   ? ConvStepKernel<3>
                        : params.d_conv == 4 ? ConvStepKernel<4>
                                             : ConvStepKernel<kMostConvTaps>;
    Launch("the convolution step kernel", kernel, dim3(blocks, runs), dim3(kThreads), 0, stream,
           params);
    return;
  }
  Launch("the convolution kernel", ConvRunKernel,
         dim3(blocks, static_cast<unsigned>(std::min(most_tokens, 256)), runs), dim3(kThreads), 0,
         stream, params);
  LaunchConvWindow(params, stream);
}

void LaunchConvWindow(const CausalConvParams& params, cudaStream_t stream) {
  if (params.d_conv == 1) return;
  Launch("the kernel of the convolution's window", ConvWindowKernel,
         dim3(static_cast<unsigned>((params.channels + kThreads - 1) / kThreads),
              static_cast<unsigned>(params.run_count)),
         dim3(kThreads), 0, stream, params);
}

}  // namespace adder::cuda
