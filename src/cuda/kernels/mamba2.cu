// Mamba-2 step and prefill.
//
// Step kernel. A block of 8 warps owns one head's d_state x 32 part of the state: lane = channel of
// the head, warp = every eighth row of d_state. Phases: (1) load state, conv weights and windows,
// which earlier steps wrote; (2) PdlWait; (3) convolve B, C and the block's x into shared memory,
// barrier; (4) state = decay * state + dt B x, partial sums of C . state, barrier; (5) the first
// warp adds up, applies D and the gate. B and C are convolved by every block of their group; the
// group's first block writes their window.
//
// Prefill is a convolution kernel, then a scan kernel with the same ownership that walks over the
// run with the state in registers, kScanTokens tokens between barriers.
// Preconditions: d_state <= kMaxStateSize, d_conv <= kMaxTaps.
#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <algorithm>

#include "core/error.h"
#include "cuda/kernels/conv_step.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/mamba2.h"

namespace adder::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * 32;
constexpr int kMaxTaps = 8;
constexpr int kScanTokens = 16;

__device__ __forceinline__ float Silu(float x) { return x / (1.0f + expf(-x)); }
__device__ __forceinline__ float Softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

struct StepSize {
  float dt;
  float decay;
};
__device__ __forceinline__ StepSize MakeStep(const Mamba2Params& p, float dt_bias, float a,
                                             float input) {
  const float dt = fminf(fmaxf(Softplus(input + dt_bias), p.dt_min), p.dt_max);
  return {dt, expf(dt * a)};
}

// One token for this thread's part of the state; returns its share of C . state. b and c are the
// token's, in shared memory.
template <int kRows>
__device__ __forceinline__ float StateStep(float (&state)[kRows], const float* b, const float* c,
                                           int warp, int d_state, float decay, float dt_x) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int n = warp + i * kWarps;
    if (n >= d_state) break;
    state[i] = fmaf(decay, state[i], b[n] * dt_x);
    sum = fmaf(c[n], state[i], sum);
  }
  return sum;
}

// Sum over warps, in their order. partial: [kWarps][32].
__device__ __forceinline__ float SumOfWarps(const float* partial, int lane) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) sum += partial[w * 32 + lane];
  return sum;
}

// Where a block works.
struct Place {
  int head;
  int channel;  // of the head, this lane's
  bool used;    // the head has such a channel
  int x_channel;
  int group;
  bool writes_group;  // whether this block writes the window of B and C
};
__device__ __forceinline__ Place FindPlace(const Mamba2Params& p) {
  const int parts = (p.head_dim + 31) / 32;
  Place place;
  place.head = blockIdx.x / parts;
  const int part = blockIdx.x % parts;
  place.channel = part * 32 + threadIdx.x % 32;
  place.used = place.channel < p.head_dim;
  place.x_channel = place.head * p.head_dim + place.channel;
  const int heads_per_group = p.heads / p.groups;
  place.group = place.head / heads_per_group;
  place.writes_group = part == 0 && place.head % heads_per_group == 0;
  return place;
}

// The conv channel of element i of B | C of a group, i < 2 * d_state.
__device__ __forceinline__ int BcChannel(const Mamba2Params& p, int group, int i) {
  return p.inner() +
         (i < p.d_state ? group * p.d_state + i : (p.groups + group) * p.d_state + i - p.d_state);
}

template <int kRows>
__device__ __forceinline__ void LoadState(float (&state)[kRows], const float* from, int warp,
                                          const Mamba2Params& p, const Place& place) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int n = warp + i * kWarps;
    state[i] = n < p.d_state && place.used ? from[static_cast<long long>(n) * p.head_dim] : 0.0f;
  }
}
template <int kRows>
__device__ __forceinline__ void StoreState(const float (&state)[kRows], float* to, int warp,
                                           const Mamba2Params& p, const Place& place) {
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int n = warp + i * kWarps;
    if (n < p.d_state && place.used) to[static_cast<long long>(n) * p.head_dim] = state[i];
  }
}

template <int kRows, int kTaps>
__global__ void __launch_bounds__(kThreads)
    Mamba2StepKernel(const __grid_constant__ Mamba2Params p) {
  constexpr int kBcPerThread = (2 * kRows * kWarps + kThreads - 1) / kThreads;
  __shared__ float bc[2 * kRows * kWarps];
  __shared__ float xs[32];
  __shared__ float partial[kWarps * 32];
  __shared__ StepSize step;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const Place place = FindPlace(p);
  const SequenceRun run = p.runs[blockIdx.y];
  const int channels = p.conv_channels();
  // Known at compile time for the usual window: short code.
  const int d_conv = kTaps == kMaxTaps ? p.d_conv : kTaps;
  float* ring = run.recurrent + p.conv_offset;
  float* states = run.recurrent + p.ssm_offset +
                  static_cast<long long>(place.head) * p.d_state * p.head_dim + place.channel;

  float state[kRows];
  LoadState(state, states, warp, p, place);
  ConvStep<kTaps> conv_bc[kBcPerThread];
#pragma unroll
  for (int i = 0; i < kBcPerThread; ++i) {
    const int element = static_cast<int>(threadIdx.x) + i * kThreads;
    if (element < 2 * p.d_state) {
      conv_bc[i].Load(p.conv_weight, ring, d_conv, channels, BcChannel(p, place.group, element),
                      run.position);
    }
  }
  ConvStep<kTaps> conv_x;
  if (warp == 0 && place.used) {
    conv_x.Load(p.conv_weight, ring, d_conv, channels, place.x_channel, run.position);
  }

  const float dt_bias = p.dt_bias[place.head];
  const float a = p.a[place.head];
  const float d = p.d[place.head];

  PdlWait();
  PdlTrigger();
  const float* projected = p.projected + static_cast<long long>(run.row) * p.projected_stride;
  const float* inputs = projected + p.inner();
  float* newest = ring + static_cast<long long>(run.position % d_conv) * channels;
  const bool has_ring = d_conv > 1;
#pragma unroll
  for (int i = 0; i < kBcPerThread; ++i) {
    const int element = static_cast<int>(threadIdx.x) + i * kThreads;
    if (element >= 2 * p.d_state) continue;
    const int channel = BcChannel(p, place.group, element);
    const float input = inputs[channel];
    const float bias = p.conv_bias == nullptr ? 0.0f : p.conv_bias[channel];
    bc[element] = Silu(conv_bc[i].Apply(bias, input, d_conv));
    if (place.writes_group && has_ring) newest[channel] = input;
  }
  float gate = 0;
  if (warp == 0 && place.used) {
    const float input = inputs[place.x_channel];
    const float bias = p.conv_bias == nullptr ? 0.0f : p.conv_bias[place.x_channel];
    xs[lane] = Silu(conv_x.Apply(bias, input, d_conv));
    if (has_ring) newest[place.x_channel] = input;
    gate = projected[place.x_channel];
  }
  if (threadIdx.x == kThreads - 1) {
    step = MakeStep(p, dt_bias, a, projected[p.inner() + channels + place.head]);
  }
  __syncthreads();
  const float x = place.used ? xs[lane] : 0.0f;
  partial[warp * 32 + lane] =
      StateStep(state, bc, bc + p.d_state, warp, p.d_state, step.decay, step.dt * x);
  StoreState(state, states, warp, p, place);
  __syncthreads();
  if (warp == 0 && place.used) {
    const float y = fmaf(d, x, SumOfWarps(partial, lane));
    const float gated = y * Silu(gate);
    p.output[static_cast<long long>(run.row) * p.output_stride + place.x_channel] = gated;
    if (p.rounded_output != nullptr) {
      p.rounded_output[static_cast<long long>(run.row) * p.rounded_output_stride +
                       place.x_channel] = __bfloat16_as_ushort(__float2bfloat16_rn(gated));
    }
  }
}

// convolved[row][channel] for every token of every run.
__global__ void ConvPrefillKernel(const __grid_constant__ Mamba2Params p, float* convolved) {
  PdlWait();
  PdlTrigger();
  const SequenceRun run = p.runs[blockIdx.z];
  const int channels = p.conv_channels();
  const int channel = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (channel >= channels) return;
  const float* ring = run.recurrent + p.conv_offset;
  const float bias = p.conv_bias == nullptr ? 0.0f : p.conv_bias[channel];
  ConvStep<kMaxTaps> conv;
#pragma unroll
  for (int tap = 0; tap < kMaxTaps; ++tap) {
    if (tap >= p.d_conv) break;
    conv.weights[tap] = p.conv_weight[static_cast<long long>(tap) * channels + channel];
  }
  for (int i = static_cast<int>(blockIdx.y); i < run.tokens; i += static_cast<int>(gridDim.y)) {
    const float* input = p.projected + static_cast<long long>(run.row + i) * p.projected_stride +
                         p.inner() + channel;
#pragma unroll
    for (int tap = 0; tap < kMaxTaps; ++tap) {
      if (tap + 1 >= p.d_conv) break;
      const int back = p.d_conv - 1 - tap;
      if (i >= back) {
        conv.past[tap] = input[-static_cast<long long>(back) * p.projected_stride];
      } else {
        const int row = (run.position + i + 1 + tap) % p.d_conv;
        conv.past[tap] = ring[static_cast<long long>(row) * channels + channel];
      }
    }
    convolved[static_cast<long long>(run.row + i) * channels + channel] =
        Silu(conv.Apply(bias, *input, p.d_conv));
  }
}

template <int kRows>
__global__ void __launch_bounds__(kThreads)
    Mamba2ScanKernel(const __grid_constant__ Mamba2Params p, const float* convolved) {
  constexpr int kMaxState = kRows * kWarps;
  extern __shared__ float shared[];
  float* bc = shared;                            // [kScanTokens][2 * kMaxState]
  float* xs = bc + kScanTokens * 2 * kMaxState;  // [kScanTokens][32]
  float* steps = xs + kScanTokens * 32;          // [kScanTokens][2]
  float* partial = steps + kScanTokens * 2;      // [kScanTokens][kWarps * 32]
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const Place place = FindPlace(p);
  const SequenceRun run = p.runs[blockIdx.y];
  const int channels = p.conv_channels();
  float* states = run.recurrent + p.ssm_offset +
                  static_cast<long long>(place.head) * p.d_state * p.head_dim + place.channel;
  float state[kRows];
  LoadState(state, states, warp, p, place);
  PdlWait();
  PdlTrigger();
  const float d = p.d[place.head];
  for (int begin = 0; begin < run.tokens; begin += kScanTokens) {
    const int count = min(kScanTokens, run.tokens - begin);
    for (int i = threadIdx.x; i < count * 2 * p.d_state; i += kThreads) {
      const int token = i / (2 * p.d_state);
      const int element = i % (2 * p.d_state);
      bc[token * 2 * kMaxState + element] =
          convolved[static_cast<long long>(run.row + begin + token) * channels +
                    BcChannel(p, place.group, element)];
    }
    for (int token = warp; token < count; token += kWarps) {
      const long long row = run.row + begin + token;
      xs[token * 32 + lane] = place.used ? convolved[row * channels + place.x_channel] : 0.0f;
      if (lane == 0) {
        const StepSize step =
            MakeStep(p, p.dt_bias[place.head], p.a[place.head],
                     p.projected[row * p.projected_stride + p.inner() + channels + place.head]);
        steps[token * 2] = step.dt;
        steps[token * 2 + 1] = step.decay;
      }
    }
    __syncthreads();
    for (int token = 0; token < count; ++token) {
      const float* b = bc + token * 2 * kMaxState;
      partial[(token * kWarps + warp) * 32 + lane] =
          StateStep(state, b, b + p.d_state, warp, p.d_state, steps[token * 2 + 1],
                    steps[token * 2] * xs[token * 32 + lane]);
    }
    __syncthreads();
    for (int token = warp; token < count; token += kWarps) {
      if (!place.used) continue;
      const long long row = run.row + begin + token;
      const float y =
          fmaf(d, xs[token * 32 + lane], SumOfWarps(partial + token * kWarps * 32, lane));
      p.output[row * p.output_stride + place.x_channel] =
          y * Silu(p.projected[row * p.projected_stride + place.x_channel]);
    }
    __syncthreads();
  }
  StoreState(state, states, warp, p, place);
  if (p.d_conv <= 1) return;
  // The last inputs go to the window.
  float* ring = run.recurrent + p.conv_offset;
  for (int i = max(0, run.tokens - p.d_conv); i < run.tokens; ++i) {
    const float* input =
        p.projected + static_cast<long long>(run.row + i) * p.projected_stride + p.inner();
    float* to = ring + static_cast<long long>((run.position + i) % p.d_conv) * channels;
    if (warp == 0 && place.used) to[place.x_channel] = input[place.x_channel];
    if (!place.writes_group) continue;
    for (int element = threadIdx.x; element < 2 * p.d_state; element += kThreads) {
      const int channel = BcChannel(p, place.group, element);
      to[channel] = input[channel];
    }
  }
}

void CheckSizes(const Mamba2Params& p) {
  if (p.d_state > kMaxStateSize) {
    Fail("The CUDA backend's Mamba-2 kernels hold a d_state of at most ", kMaxStateSize,
         ", and this model's is ", p.d_state, "; use --device cpu.");
  }
  if (p.d_conv > kMaxTaps) {
    Fail("The CUDA backend's Mamba-2 kernels hold a d_conv of at most ", kMaxTaps,
         ", and this model's is ", p.d_conv, "; use --device cpu.");
  }
}

// Calls launch with the number of state rows per warp as a compile-time constant.
template <class LaunchWith>
void WithRows(int d_state, LaunchWith launch) {
  const int rows = (d_state + kWarps - 1) / kWarps;
  if (rows <= 2) return launch.template operator()<2>();
  if (rows <= 8) return launch.template operator()<8>();
  if (rows <= 16) return launch.template operator()<16>();
  return launch.template operator()<kMaxStateSize / kWarps>();
}

}  // namespace

void LaunchMamba2Step(const Mamba2Params& params, cudaStream_t stream) {
  CheckSizes(params);
  const auto blocks = static_cast<unsigned>(params.heads * ((params.head_dim + 31) / 32));
  const dim3 grid(blocks, static_cast<unsigned>(params.run_count));
  WithRows(params.d_state, [&]<int kRows>() {
    constexpr char kName[] = "the Mamba-2 step kernel";
    if (params.d_conv == 4) {
      Launch(kName, Mamba2StepKernel<kRows, 4>, grid, dim3(kThreads), 0, stream, params);
    } else {
      Launch(kName, Mamba2StepKernel<kRows, kMaxTaps>, grid, dim3(kThreads), 0, stream, params);
    }
  });
}

void LaunchMamba2Prefill(const Mamba2Params& params, int most_tokens, float* convolved,
                         cudaStream_t stream) {
  CheckSizes(params);
  constexpr int kConvThreads = 128;
  Launch("the causal convolution kernel", ConvPrefillKernel,
         dim3(static_cast<unsigned>((params.conv_channels() + kConvThreads - 1) / kConvThreads),
              static_cast<unsigned>(std::min(most_tokens, 256)),
              static_cast<unsigned>(params.run_count)),
         dim3(kConvThreads), 0, stream, params, convolved);
  const auto blocks = static_cast<unsigned>(params.heads * ((params.head_dim + 31) / 32));
  WithRows(params.d_state, [&]<int kRows>() {
    constexpr size_t kShared =
        sizeof(float) * kScanTokens * (2 * kRows * kWarps + 32 + 2 + kWarps * 32);
    const auto kernel = Mamba2ScanKernel<kRows>;
    if (kShared > 48 * 1024) {
      Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(kShared)),
            "cudaFuncSetAttribute");
    }
    Launch("the Mamba-2 scan kernel", kernel, dim3(blocks, static_cast<unsigned>(params.run_count)),
           dim3(kThreads), kShared, stream, params, convolved);
  });
}

}  // namespace adder::cuda
