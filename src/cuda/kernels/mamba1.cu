// Mamba-1's selective scan: steps and prompts alike.
//
// A block owns kThreads channels of one run, a thread one channel with all of its d_state state
// elements in registers. Phases: (1) the state, which earlier steps wrote, and the channel's
// weights are loaded; (2) PdlWait; (3) per kTokens tokens: barrier; B and C, normed, go to shared
// memory, a token per warp; barrier; each thread walks over the tokens, having loaded a few tokens'
// inputs ahead; (4) the state is written. No sum depends on how a sequence is cut into runs.
#include <cuda_bf16.h>

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/mamba1.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 64;
constexpr int kTokens = 16;
constexpr int kAhead = 4;

// By one warp: to [d_state] = from, normed.
__device__ __forceinline__ void StoreNormed(const SmallNorm& norm, const float* from, int d_state,
                                            float* to) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float factor = 1;
  if (norm.used) {
    float squares = 0;
    for (int n = lane; n < d_state; n += 32) squares = fmaf(from[n], from[n], squares);
    factor = rsqrtf(WarpSum(squares) / static_cast<float>(d_state) + norm.eps);
  }
  for (int n = lane; n < d_state; n += 32) {
    to[n] = from[n] * factor * (norm.weight == nullptr ? 1.0f : norm.weight[n]);
  }
}

// kStates: d_state rounded up to a number that is compiled.
template <int kStates>
__global__ void __launch_bounds__(kThreads)
    Mamba1ScanKernel(const __grid_constant__ Mamba1Params p) {
  __shared__ float b[kTokens][kStates];
  __shared__ float c[kTokens][kStates];
  const int channel = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  const bool inside = channel < p.inner;
  const SequenceRun run = p.runs[blockIdx.y];
  float* const states = run.recurrent + p.ssm_offset + channel;
  float state[kStates];
  float a[kStates];
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    const bool used = inside && n < p.d_state;
    state[n] = used ? states[static_cast<long long>(n) * p.inner] : 0.0f;
    a[n] = used ? p.a[static_cast<long long>(n) * p.inner + channel] : 0.0f;
  }
  const float d = inside ? p.d[channel] : 0.0f;
  // What is behind d_state takes part in sums as zeros.
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * kStates; i += kThreads) {
    b[i / kStates][i % kStates] = 0;
    c[i / kStates][i % kStates] = 0;
  }
  PdlWait();
  PdlTrigger();
#pragma unroll 1
  for (int begin = 0; begin < run.tokens; begin += kTokens) {
    const int count = min(kTokens, run.tokens - begin);
    __syncthreads();
    for (int token = static_cast<int>(threadIdx.x) / 32; token < count; token += kThreads / 32) {
      const float* from = p.b_c + static_cast<long long>(run.row + begin + token) * p.b_c_stride;
      StoreNormed(p.b_norm, from, p.d_state, b[token]);
      StoreNormed(p.c_norm, from + p.d_state, p.d_state, c[token]);
    }
    __syncthreads();
    if (!inside) continue;
#pragma unroll 1
    for (int first = 0; first < count; first += kAhead) {
      float x[kAhead];
      float dt[kAhead];
      float z[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        const bool used = first + i < count;
        const long long row = run.row + begin + first + i;
        x[i] = used ? p.x[row * p.x_stride + channel] : 0.0f;
        dt[i] = used ? p.dt[row * p.dt_stride + channel] : 0.0f;
        z[i] = used ? p.z[row * p.z_stride + channel] : 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (first + i >= count) break;
        const float step = Softplus(dt[i]);
        const float added = step * x[i];
        float y = d * x[i];
#pragma unroll
        for (int n = 0; n < kStates; ++n) {
          state[n] = fmaf(expf(step * a[n]), state[n], b[first + i][n] * added);
          y = fmaf(c[first + i][n], state[n], y);
        }
        y *= z[i] / (1.0f + expf(-z[i]));
        const long long row = run.row + begin + first + i;
        p.output[row * p.output_stride + channel] = y;
        if (p.rounded_output != nullptr) {
          p.rounded_output[row * p.rounded_output_stride + channel] =
              __bfloat16_as_ushort(__float2bfloat16_rn(y));
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kStates; ++n) {
    if (inside && n < p.d_state) states[static_cast<long long>(n) * p.inner] = state[n];
  }
}

}  // namespace

void LaunchMamba1Scan(const Mamba1Params& params, cudaStream_t stream) {
  const auto kernel = params.d_state <= 16   ? Mamba1ScanKernel<16>
                      : params.d_state <= 32 ? Mamba1ScanKernel<32>
                                             : Mamba1ScanKernel<kMostMamba1State>;
  Launch("the Mamba-1 scan kernel", kernel,
         dim3(static_cast<unsigned>((params.inner + kThreads - 1) / kThreads),
              static_cast<unsigned>(params.run_count)),
         dim3(kThreads), 0, stream, params);
}

}  // namespace adder::cuda
