// A block owns one head of q or k of one row; one more block per row owns v. Phases: (1) weights of
// the second convolution into registers; PdlWait; (2) the depthwise convolution of the head's
// channels at the tokens that the second one reaches back to, into shared memory; barrier; (3) the
// second convolution, its products for a channel spread over the threads of several parts; barrier;
// (4) a thread per channel: the sum of the parts, and the means. Rows before the run come from the
// ring, others from the input. In steps the blocks put this token's row where no step reads before
// it is overwritten; of longer runs, whose blocks also read the ring, a second kernel does. Sums
// are taken in an order that depends on sizes alone.
#include <algorithm>

#include "cuda/kernels/head_mix.h"
#include "cuda/kernels/launch.cuh"

namespace adder::cuda {
namespace {

constexpr int kMostThreads = kMostHeadMixDim;
constexpr int kMostParts = 8;
constexpr int kHeld = 32;  // weights of a thread that are there before the row's numbers
constexpr int kStateThreads = 256;

// Threads of a part: a warp's multiple of channels.
__host__ __device__ int PartThreads(int head_dim) { return (head_dim + 31) / 32 * 32; }

// Row `age` tokens before a run's token number `token`, at channel c of q | k.
struct Past {
  const HeadMixParams& p;
  const SequenceRun& run;
  int channels;
  int ring_rows;

  __device__ __forceinline__ float At(int token, int age, int c) const {
    const int index = token - age;
    if (index >= 0) return p.input[static_cast<long long>(run.row + index) * p.stride + c];
    const int position = run.position + index;
    // Rows of positions before the beginning are zero.
    const int row = (position % ring_rows + ring_rows) % ring_rows;
    return run.recurrent[p.conv_offset + static_cast<long long>(row) * channels + c];
  }
};

template <bool kStep>
__global__ void __launch_bounds__(kMostThreads)
    HeadMixKernel(const __grid_constant__ HeadMixParams p) {
  // [group_taps][head_dim], oldest first; then sums [parts][PartThreads]
  extern __shared__ float convolved[];
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int head = static_cast<int>(blockIdx.x);
  const int heads = p.heads + p.kv_heads;
  const int channels = heads * p.head_dim;
  const int first = head * p.head_dim;
  const int products = p.group_taps * p.head_dim;
  const int width = PartThreads(p.head_dim);
  const int parts = threads / width;
  const int part = thread / width;
  const int d = thread % width;
  const int share = (products + parts - 1) / parts;
  const int begin = part * share;
  const int end = head < heads && d < p.head_dim ? min(begin + share, products) : begin;
  const float* weights = p.group_weight + first + d;
  const auto weight = [&](int j) { return weights[static_cast<long long>(j) * channels]; };
  float held[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    held[i] = begin + i < end ? weight(begin + i) : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < kHeld; ++i) ReadyBeforeWait(held[i]);
  PdlWait();
  PdlTrigger();
  const int row = static_cast<int>(blockIdx.y);
  const SequenceRun run = p.runs[p.row_runs[row]];
  const int token = row - run.row;
  const int ring_rows = p.taps + p.group_taps - 1;
  const float* in = p.input + static_cast<long long>(row) * p.stride;
  float* out = p.output + static_cast<long long>(row) * p.stride;
  if (head == heads) {
    const int half = p.kv_heads * p.head_dim / 2;
    float* delayed = run.recurrent + p.value_offset;
    for (int i = thread; i < half; i += threads) {
      out[channels + i] = in[channels + i];
      out[channels + half + i] = token == 0 ? delayed[i] : (in - p.stride)[channels + half + i];
      if (kStep) delayed[i] = in[channels + half + i];
    }
    return;
  }
  const Past past = {p, run, channels, ring_rows};
  for (int i = thread; i < products; i += threads) {
    const int age = p.group_taps - 1 - i / p.head_dim;
    const int c = first + i % p.head_dim;
    float sum = p.conv_bias[c];
    for (int t = 0; t < p.taps; ++t) {
      sum = fmaf(p.conv_weight[t * channels + c], past.At(token, age + p.taps - 1 - t, c), sum);
    }
    convolved[i] = sum;
  }
  __syncthreads();
  float* sums = convolved + products;
  float of_part = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    if (begin + i < end) of_part = fmaf(held[i], convolved[begin + i], of_part);
  }
#pragma unroll 8
  for (int j = begin + kHeld; j < end; ++j) of_part = fmaf(weight(j), convolved[j], of_part);
  sums[thread] = of_part;
  __syncthreads();
  if (part > 0 || d >= p.head_dim) return;
  const int group = p.heads / p.kv_heads;
  const int q_width = p.heads * p.head_dim;
  const int c = first + d;
  float sum = p.group_bias[c];
  for (int other = 0; other < parts; ++other) sum += sums[other * width + d];
  if (head < p.heads) {
    sum += 0.5f * (in[c] + in[q_width + head / group * p.head_dim + d]);
  } else {
    float mean = 0;
    for (int h = 0; h < group; ++h) {
      mean += in[((head - p.heads) * group + h) * p.head_dim + d];
    }
    sum += 0.5f * (mean / static_cast<float>(group) + in[c]);
  }
  out[c] = sum;
  if (kStep && ring_rows > 1) {
    run.recurrent[p.conv_offset + static_cast<long long>(run.position % ring_rows) * channels + c] =
        in[c];
  }
}

// After HeadMixKernel: the last rows go to the ring, the last v2 to its place.
__global__ void __launch_bounds__(kStateThreads)
    HeadMixStateKernel(const __grid_constant__ HeadMixParams p) {
  PdlWait();
  PdlTrigger();
  const int at = static_cast<int>(blockIdx.x) * kStateThreads + static_cast<int>(threadIdx.x);
  const SequenceRun run = p.runs[blockIdx.y];
  const int channels = (p.heads + p.kv_heads) * p.head_dim;
  const int ring_rows = p.taps + p.group_taps - 1;
  const int half = p.kv_heads * p.head_dim / 2;
  const auto input = [&](int token, int column) {
    return p.input[static_cast<long long>(run.row + token) * p.stride + column];
  };
  if (at < channels && ring_rows > 1) {
    for (int token = max(0, run.tokens - ring_rows); token < run.tokens; ++token) {
      const int row = (run.position + token) % ring_rows;
      run.recurrent[p.conv_offset + static_cast<long long>(row) * channels + at] = input(token, at);
    }
  } else if (at >= channels && at < channels + half) {
    run.recurrent[p.value_offset + at - channels] = input(run.tokens - 1, at + half);
  }
}

}  // namespace

void LaunchHeadMix(const HeadMixParams& params, int most_tokens, cudaStream_t stream) {
  if (params.rows == 0) return;
  const int heads = params.heads + params.kv_heads;
  const int width = PartThreads(params.head_dim);
  const int threads = width * std::clamp(kMostThreads / width, 1, kMostParts);
  Launch("the kernel that mixes heads",
         most_tokens == 1 ? HeadMixKernel<true> : HeadMixKernel<false>,
         dim3(static_cast<unsigned>(heads + 1), static_cast<unsigned>(params.rows)),
         dim3(static_cast<unsigned>(threads)),
         static_cast<size_t>(params.group_taps * params.head_dim + threads) * sizeof(float), stream,
         params);
  if (most_tokens == 1) return;
  const int columns = heads * params.head_dim + params.kv_heads * params.head_dim / 2;
  Launch("the kernel of what mixed heads remember", HeadMixStateKernel,
         dim3(static_cast<unsigned>((columns + kStateThreads - 1) / kStateThreads),
              static_cast<unsigned>(params.run_count)),
         dim3(kStateThreads), 0, stream, params);
}

}  // namespace adder::cuda
