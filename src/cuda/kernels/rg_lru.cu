// RG-LRU: gates, then the recurrence h = a h + b.
//
// Gates: a block owns 32 channels of one head and kTokens rows. Phases: (1) the channels' vectors
// and, of steps, the state are loaded; (2) PdlWait; (3) the head's inputs of the rows go to shared
// memory; (4) each warp multiplies a slice of the inputs, a channel per lane, so that a weight is
// read once for all rows; (5) the warps' sums are added in order, a row per warp, which turns them
// into a and b. Of runs of single tokens it then updates the state and writes the output; else a
// second kernel goes over the tokens of each run, a channel per thread. Inputs are cut into slices
// by the block's size alone, so no sum depends on the batch.
#include <cuda_bf16.h>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rg_lru.cuh"

namespace adder::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kTokens = 8;  // as many as warps: each finishes one
constexpr int kScanThreads = 64;
constexpr int kAhead = 8;
static_assert(kTokens == kWarps);

__device__ __forceinline__ void Store(const RgLruParams& p, long long row, int channel, float h) {
  const float y = h * Activate(p.gate_activation, p.y[row * p.y_stride + channel]);
  p.output[row * p.output_stride + channel] = y;
  if (p.rounded_output != nullptr) {
    p.rounded_output[row * p.rounded_output_stride + channel] =
        __bfloat16_as_ushort(__float2bfloat16_rn(y));
  }
}

// kStep: every row is a run.
template <bool kStep>
__global__ void __launch_bounds__(kWarps * 32)
    RgLruGatesKernel(const __grid_constant__ RgLruParams p, const int blocks_per_head) {
  extern __shared__ float inputs[];  // [kTokens][block]
  __shared__ float sums[2][kWarps][kTokens][32];
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int head = static_cast<int>(blockIdx.x) / blocks_per_head;
  const int in_head = (static_cast<int>(blockIdx.x) % blocks_per_head) * 32 + lane;
  const int channel = head * p.block + in_head;
  const bool inside = in_head < p.block;
  const int first_row = static_cast<int>(blockIdx.y) * kTokens;
  const int count = min(kTokens, p.rows - first_row);
  float input_bias = 0;
  float recurrent_bias = 0;
  float decay = 0;
  if (inside) {
    input_bias = p.input_bias[channel];
    recurrent_bias = p.recurrent_bias[channel];
    decay = p.decay[channel];
  }
  SequenceRun run = {};
  float* state = nullptr;
  float old = 0;
  const long long row = first_row + warp;
  if (warp < count) {
    run = p.runs[p.row_runs[row]];
    if (kStep && inside) {
      state = run.recurrent + p.state_offset + channel;
      old = *state;
    }
  }
  PdlWait();
  PdlTrigger();
  for (int i = static_cast<int>(threadIdx.x); i < kTokens * p.block; i += kWarps * 32) {
    const int token = i / p.block;
    inputs[i] = token < count ? p.x[static_cast<long long>(first_row + token) * p.x_stride +
                                    head * p.block + i % p.block]
                              : 0.0f;
  }
  __syncthreads();
  float input[kTokens] = {};
  float recurrent[kTokens] = {};
  const int per_warp = (p.block + kWarps - 1) / kWarps;
  const int begin = warp * per_warp;
  const int end = inside ? min(p.block, begin + per_warp) : begin;
#pragma unroll 4
  for (int i = begin; i < end; ++i) {
    const long long at = static_cast<long long>(head * p.block + i) * p.block + in_head;
    const float of_input = p.input_weight[at];
    const float of_recurrent = p.recurrent_weight[at];
#pragma unroll
    for (int t = 0; t < kTokens; ++t) {
      input[t] = fmaf(inputs[t * p.block + i], of_input, input[t]);
      recurrent[t] = fmaf(inputs[t * p.block + i], of_recurrent, recurrent[t]);
    }
  }
#pragma unroll
  for (int t = 0; t < kTokens; ++t) {
    sums[0][warp][t][lane] = input[t];
    sums[1][warp][t][lane] = recurrent[t];
  }
  __syncthreads();
  if (warp >= count || !inside) return;
  float input_sum = input_bias;
  float recurrent_sum = recurrent_bias;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    input_sum += sums[0][w][warp][lane];
    recurrent_sum += sums[1][w][warp][lane];
  }
  const bool first = run.position + static_cast<int>(row) - run.row == 0;
  const Recurrence of =
      RecurrenceOf(p, input_sum, recurrent_sum, decay, inputs[warp * p.block + in_head], first);
  if constexpr (kStep) {
    const float h = Step(of, old);
    *state = h;
    Store(p, row, channel, h);
  } else {
    p.gates[row * 2 * p.width + channel] = of.a;
    p.gates[row * 2 * p.width + p.width + channel] = of.b;
  }
}

__global__ void __launch_bounds__(kScanThreads)
    RgLruScanKernel(const __grid_constant__ RgLruParams p) {
  const int channel = static_cast<int>(blockIdx.x) * kScanThreads + static_cast<int>(threadIdx.x);
  const SequenceRun run = p.runs[blockIdx.y];
  const bool inside = channel < p.width;
  float* state = run.recurrent + p.state_offset + channel;
  float h = inside ? *state : 0.0f;
  PdlWait();
  PdlTrigger();
  if (!inside) return;
#pragma unroll 1
  for (int begin = 0; begin < run.tokens; begin += kAhead) {
    Recurrence of[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= run.tokens) break;
      const float* gates =
          p.gates + static_cast<long long>(run.row + begin + i) * 2 * p.width + channel;
      of[i] = {gates[0], gates[p.width]};
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (begin + i >= run.tokens) break;
      h = Step(of[i], h);
      Store(p, run.row + begin + i, channel, h);
    }
  }
  *state = h;
}

}  // namespace

void LaunchRgLru(const RgLruParams& params, int most_tokens, cudaStream_t stream) {
  if (params.rows == 0) return;
  const int blocks_per_head = (params.block + 31) / 32;
  const dim3 grid(static_cast<unsigned>(params.width / params.block * blocks_per_head),
                  static_cast<unsigned>((params.rows + kTokens - 1) / kTokens));
  const auto shared = static_cast<size_t>(kTokens * params.block) * sizeof(float);
  if (most_tokens == 1) {
    Launch("the RG-LRU step kernel", RgLruGatesKernel<true>, grid, dim3(kWarps * 32), shared,
           stream, params, blocks_per_head);
    return;
  }
  Launch("the kernel of RG-LRU gates", RgLruGatesKernel<false>, grid, dim3(kWarps * 32), shared,
         stream, params, blocks_per_head);
  Launch("the RG-LRU scan kernel", RgLruScanKernel,
         dim3(static_cast<unsigned>((params.width + kScanThreads - 1) / kScanThreads),
              static_cast<unsigned>(params.run_count)),
         dim3(kScanThreads), 0, stream, params);
}

}  // namespace adder::cuda
