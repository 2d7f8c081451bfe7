// RWKV-7's generalised delta rule: steps and prompts alike.
//
// A block owns a head of one run (rwkv7_head.cuh has who owns what of it). Phases: (1) the state,
// which earlier steps wrote, is loaded; (2) PdlWait; (3) per token: the last warp makes its
// vectors; barrier; the state's update and answers; barrier; the last warp finishes; (4) the state
// is written. The next token's inputs are loaded while this one's are used.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rwkv7.h"
#include "cuda/kernels/rwkv7_head.cuh"

namespace adder::cuda {
namespace {

// kDim: head_dim rounded up to a number that is compiled.
template <int kDim>
__global__ void __launch_bounds__(kRwkv7Threads)
    Rwkv7Kernel(const __grid_constant__ Rwkv7Params p) {
  using Channels = Rwkv7Channels<kDim>;
  __shared__ Rwkv7Vectors<kDim> vectors;
  const int head = static_cast<int>(blockIdx.x);
  const bool is_last = threadIdx.x / 32 == kRwkv7Warps - 1;
  const bool mixes_values = p.value_mix != nullptr;
  const SequenceRun run = p.runs[blockIdx.y];
  float* states =
      run.recurrent + p.state_offset + static_cast<long long>(head) * p.head_dim * p.head_dim;
  Rwkv7State<kDim> state;
  state.Load(states, p.head_dim);
  Channels channels;
  if (is_last) channels.LoadWeights(p, head, p.head_dim);
  PdlWait();
  PdlTrigger();
  struct Inputs {
    typename Channels::Token token;
    float decay[Channels::kOfLane];
    float rate[Channels::kOfLane];
    float value_mix[Channels::kOfLane];
  };
  Inputs next;
  const auto load_next = [&](int token) {
    const long long at = static_cast<long long>(run.row + token) * p.stride + head * p.head_dim;
    channels.Load(p, at, p.head_dim, mixes_values, next.token);
#pragma unroll
    for (int i = 0; i < Channels::kOfLane; ++i) {
      const int channel = channels.Channel(i);
      const bool inside = channel < p.head_dim;
      next.decay[i] = inside ? p.decay[at + channel] : 0.0f;
      next.rate[i] = inside ? p.rate[at + channel] : 0.0f;
      next.token.gate[i] = inside ? p.gate[at + channel] : 0.0f;
      next.value_mix[i] = inside && mixes_values ? p.value_mix[at + channel] : 0.0f;
    }
  };
  if (is_last) load_next(0);
#pragma unroll 1
  for (int token = 0; token < run.tokens; ++token) {
    if (is_last) {
      const Inputs inputs = next;
      channels.now = inputs.token;
      if (token + 1 < run.tokens) load_next(token + 1);
      channels.FindLength();
      channels.Publish([&](int i) { return inputs.decay[i]; },
                       [&](int i) { return inputs.rate[i]; },
                       [&](int i) { return inputs.value_mix[i]; }, mixes_values, vectors);
    }
    __syncthreads();
    state.Update(vectors);
    __syncthreads();
    if (!is_last) continue;
    const long long row = run.row + token;
    channels.Finish(vectors, p.head_dim, p.norm_eps, [&](int channel, float out) {
      const int at = head * p.head_dim + channel;
      p.output[row * p.stride + at] = out;
      if (p.rounded_output != nullptr) {
        p.rounded_output[row * p.rounded_output_stride + at] =
            __bfloat16_as_ushort(__float2bfloat16_rn(out));
      }
    });
  }
  state.Store(states, p.head_dim);
}

constexpr int kShiftThreads = 256;

// A thread owns a channel of one row. In steps it also replaces the state that it read; of longer
// runs a second kernel does.
template <bool kStep>
__global__ void __launch_bounds__(kShiftThreads)
    TokenShiftKernel(const __grid_constant__ TokenShiftParams p) {
  PdlWait();
  PdlTrigger();
  const int channel = static_cast<int>(blockIdx.x) * kShiftThreads + static_cast<int>(threadIdx.x);
  if (channel >= p.width) return;
  const auto row = static_cast<long long>(blockIdx.y);
  const SequenceRun run = p.runs[p.row_runs[row]];
  float* state = run.recurrent + p.state_offset + channel;
  const float y = p.input[row * p.input_stride + channel];
  const float previous = row == run.row ? *state : p.input[(row - 1) * p.input_stride + channel];
  if constexpr (kStep) *state = y;
  for (int part = 0; part < p.parts; ++part) {
    const int at = part * p.width + channel;
    const float out = fmaf(p.mix[at], previous - y, y);
    if (p.output != nullptr) p.output[row * p.output_stride + at] = out;
    if (p.rounded_output != nullptr) {
      p.rounded_output[row * p.rounded_output_stride + at] =
          __bfloat16_as_ushort(__float2bfloat16_rn(out));
    }
  }
}

__global__ void __launch_bounds__(kShiftThreads)
    ShiftStateKernel(const __grid_constant__ TokenShiftParams p) {
  PdlWait();
  PdlTrigger();
  const int channel = static_cast<int>(blockIdx.x) * kShiftThreads + static_cast<int>(threadIdx.x);
  if (channel >= p.width) return;
  const SequenceRun run = p.runs[blockIdx.y];
  run.recurrent[p.state_offset + channel] =
      p.input[static_cast<long long>(run.row + run.tokens - 1) * p.input_stride + channel];
}

}  // namespace

void LaunchRwkv7(const Rwkv7Params& params, cudaStream_t stream) {
  const auto launch = [&](auto kernel) {
    Launch("the RWKV-7 kernel", kernel,
           dim3(static_cast<unsigned>(params.heads), static_cast<unsigned>(params.run_count)),
           dim3(kRwkv7Threads), 0, stream, params);
  };
  if (params.head_dim <= 32) return launch(Rwkv7Kernel<32>);
  if (params.head_dim <= 64) return launch(Rwkv7Kernel<64>);
  launch(Rwkv7Kernel<kMostRwkv7Dim>);
}

void LaunchTokenShift(const TokenShiftParams& params, int most_tokens, cudaStream_t stream) {
  if (params.rows == 0) return;
  const auto blocks = static_cast<unsigned>((params.width + kShiftThreads - 1) / kShiftThreads);
  Launch("the token shift kernel",
         most_tokens == 1 ? TokenShiftKernel<true> : TokenShiftKernel<false>,
         dim3(blocks, static_cast<unsigned>(params.rows)), dim3(kShiftThreads), 0, stream, params);
  if (most_tokens == 1) return;
  Launch("the kernel of the token shift's state", ShiftStateKernel,
         dim3(blocks, static_cast<unsigned>(params.run_count)), dim3(kShiftThreads), 0, stream,
         params);
}

}  // namespace adder::cuda
