// RWKV-7's generalised delta rule: steps and prompts alike.
//
// A block owns a head of one run, a thread one column of its state (a channel of the value) with
// all of the column's rows in registers. Phases: (1) the state, which earlier steps wrote, is
// loaded; (2) PdlWait; (3) per token: each thread computes its channel of the key's vectors, the
// block their sums, and all go to shared memory; barrier; the column's answer, update and output;
// the layer norm over the block; (4) the state is written. The next token's inputs are loaded
// while this one's are used. Sums are taken in an order that depends on sizes alone.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rwkv7.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

// What a token brings to a channel.
struct Inputs {
  float r = 0;
  float k = 0;
  float v = 0;
  float decay = 0;
  float rate = 0;
  float gate = 0;

  __device__ __forceinline__ void Load(const Rwkv7Params& p, long long row, int channel) {
    const long long at = row * p.stride + channel;
    r = p.r[at];
    k = p.k[at];
    v = p.v[at];
    decay = p.decay[at];
    rate = p.rate[at];
    gate = p.gate[at];
    if (p.value_mix != nullptr) {
      v = fmaf(Sigmoid(p.value_mix[at]), p.first_value[at] - v, v);
    }
  }
};

// kDim: head_dim rounded up to a number that is compiled; also the threads of a block.
template <int kDim>
__global__ void __launch_bounds__(kDim) Rwkv7Kernel(const __grid_constant__ Rwkv7Params p) {
  // One channel of the key after another; zeros behind head_dim.
  __shared__ float4 vectors[kDim];  // kappa, alpha * kappa, decay, key
  __shared__ float answers[kDim];   // r
  __shared__ float of_warps[4][kDim / 32];
  constexpr float kDecayScale = kRwkv7DecayScale;
  constexpr float kShortest = kRwkv7ShortestKey;
  const int channel = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.x);
  const SequenceRun run = p.runs[blockIdx.y];
  const bool inside = channel < p.head_dim;
  const int at = head * p.head_dim + channel;
  float* states = run.recurrent + p.state_offset +
                  static_cast<long long>(head) * p.head_dim * p.head_dim + channel;
  float state[kDim];
#pragma unroll
  for (int n = 0; n < kDim; ++n) {
    state[n] = inside && n < p.head_dim ? states[n * p.head_dim] : 0.0f;
  }
  float key_scale = 0;
  float key_rate = 0;
  float bonus = 0;
  float norm_weight = 1;
  float norm_bias = 0;
  if (inside) {
    key_scale = p.key_scale[at];
    key_rate = p.key_rate[at];
    bonus = p.bonus[at];
    if (p.norm_weight != nullptr) norm_weight = p.norm_weight[at];
    if (p.norm_bias != nullptr) norm_bias = p.norm_bias[at];
  }
  PdlWait();
  PdlTrigger();
  Inputs next;
  if (inside) next.Load(p, run.row, at);
#pragma unroll 1
  for (int token = 0; token < run.tokens; ++token) {
    const Inputs now = next;
    if (inside && token + 1 < run.tokens) next.Load(p, run.row + token + 1, at);
    float kappa = now.k * key_scale;
    const float alpha = Sigmoid(now.rate);
    const float key = now.k * (1.0f + (alpha - 1.0f) * key_rate);
    // The barriers in these sums also keep this token's vectors from overtaking the last one's.
    const float length = sqrtf(BlockSum(kappa * kappa, of_warps[0]));
    const float own = BlockSum(now.r * key * bonus, of_warps[1]);
    kappa /= fmaxf(length, kShortest);
    vectors[channel] =
        make_float4(kappa, alpha * kappa, expf(-kDecayScale * Sigmoid(now.decay)), key);
    answers[channel] = now.r;
    __syncthreads();
    float found = 0;
#pragma unroll
    for (int n = 0; n < kDim; ++n) found = fmaf(vectors[n].x, state[n], found);
    float y = 0;
#pragma unroll
    for (int n = 0; n < kDim; ++n) {
      const float4 of = vectors[n];
      state[n] = fmaf(of.z, state[n], fmaf(of.w, now.v, -of.y * found));
      y = fmaf(answers[n], state[n], y);
    }
    const float size = 1.0f / static_cast<float>(p.head_dim);
    const float mean = BlockSum(inside ? y : 0.0f, of_warps[2]) * size;
    const float off = inside ? y - mean : 0.0f;
    const float factor = rsqrtf(BlockSum(off * off, of_warps[3]) * size + p.norm_eps);
    if (!inside) continue;
    const float out = (fmaf(off * factor, norm_weight, norm_bias) + own * now.v) * now.gate;
    const long long row = run.row + token;
    p.output[row * p.stride + at] = out;
    if (p.rounded_output != nullptr) {
      p.rounded_output[row * p.rounded_output_stride + at] =
          __bfloat16_as_ushort(__float2bfloat16_rn(out));
    }
  }
#pragma unroll
  for (int n = 0; n < kDim; ++n) {
    if (inside && n < p.head_dim) states[n * p.head_dim] = state[n];
  }
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
  const auto launch = [&](auto kernel, int threads) {
    Launch("the RWKV-7 kernel", kernel,
           dim3(static_cast<unsigned>(params.heads), static_cast<unsigned>(params.run_count)),
           dim3(static_cast<unsigned>(threads)), 0, stream, params);
  };
  if (params.head_dim <= 32) return launch(Rwkv7Kernel<32>, 32);
  if (params.head_dim <= 64) return launch(Rwkv7Kernel<64>, 64);
  launch(Rwkv7Kernel<kMostRwkv7Dim>, kMostRwkv7Dim);
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
