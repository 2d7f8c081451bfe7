// Lightning attention: steps and prompts alike.
//
// A block owns a head of one run and kColumns columns of its state; kSlices threads share a column,
// each with a slice of its rows in registers. Phases: (1) the state, which earlier steps wrote, is
// loaded; (2) PdlWait; (3) per kTokens tokens: barrier; q, k and the columns' v go to shared
// memory; barrier; each thread walks over the tokens; the slices' sums meet by shuffles; (4) the
// state is written. Sums are taken in an order that depends on sizes alone.
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/lightning.h"

namespace adder::cuda {
namespace {

constexpr int kColumns = 32;
constexpr int kSlices = 4;
constexpr int kNeighbours = 32 / kSlices;  // columns of a warp: whole sectors of memory
constexpr int kThreads = kColumns * kSlices;
constexpr int kTokens = 8;

// kDim: head_dim rounded up to a number that is compiled.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    LightningKernel(const __grid_constant__ LightningParams p) {
  constexpr int kRows = kDim / kSlices;
  __shared__ float q[kTokens][kDim];
  __shared__ float k[kTokens][kDim];
  __shared__ float v[kTokens][kColumns];
  const int thread = static_cast<int>(threadIdx.x);
  // Rows slice + kSlices * i of a column.
  const int slice = thread % 32 / kNeighbours;
  const int own_column = thread / 32 * kNeighbours + thread % kNeighbours;
  const int column = static_cast<int>(blockIdx.x) * kColumns + own_column;
  const int head = static_cast<int>(blockIdx.y);
  const SequenceRun run = p.runs[blockIdx.z];
  const bool inside = column < p.head_dim;
  float* states = run.recurrent + p.state_offset +
                  static_cast<long long>(head) * p.head_dim * p.head_dim + column;
  const float decay = expf(-p.slopes[head]);
  float state[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int n = slice + kSlices * i;
    state[i] = inside && n < p.head_dim ? states[static_cast<long long>(n) * p.head_dim] : 0.0f;
  }
  // What is behind head_dim takes part in sums as zeros.
  for (int i = thread; i < kTokens * kDim; i += kThreads) {
    q[i / kDim][i % kDim] = 0;
    k[i / kDim][i % kDim] = 0;
  }
  PdlWait();
  PdlTrigger();
#pragma unroll 1
  for (int begin = 0; begin < run.tokens; begin += kTokens) {
    const int count = min(kTokens, run.tokens - begin);
    __syncthreads();
    for (int i = thread; i < count * p.head_dim; i += kThreads) {
      const int token = i / p.head_dim;
      const int n = i % p.head_dim;
      const float* from = p.qkv + static_cast<long long>(run.row + begin + token) * p.qkv_stride +
                          static_cast<long long>(3 * head) * p.head_dim;
      q[token][n] = from[n];
      k[token][n] = from[p.head_dim + n];
      const int own = n - static_cast<int>(blockIdx.x) * kColumns;
      if (own >= 0 && own < kColumns) v[token][own] = from[2 * p.head_dim + n];
    }
    __syncthreads();
#pragma unroll 1
    for (int token = 0; token < count; ++token) {
      const float value = inside ? v[token][own_column] : 0.0f;
      float y = 0;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int n = slice + kSlices * i;
        state[i] = fmaf(decay, state[i], k[token][n] * value);
        y = fmaf(q[token][n], state[i], y);
      }
#pragma unroll
      for (int offset = kNeighbours; offset < 32; offset *= 2) {
        y += __shfl_xor_sync(0xffffffffu, y, offset);
      }
      if (inside && slice == 0) {
        p.output[static_cast<long long>(run.row + begin + token) * p.output_stride +
                 static_cast<long long>(head) * p.head_dim + column] = y;
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int n = slice + kSlices * i;
    if (inside && n < p.head_dim) states[static_cast<long long>(n) * p.head_dim] = state[i];
  }
}

}  // namespace

void LaunchLightning(const LightningParams& params, cudaStream_t stream) {
  const auto kernel = params.head_dim <= 32   ? LightningKernel<32>
                      : params.head_dim <= 64 ? LightningKernel<64>
                                              : LightningKernel<kMostLightningDim>;
  Launch("the lightning attention kernel", kernel,
         dim3(static_cast<unsigned>((params.head_dim + kColumns - 1) / kColumns),
              static_cast<unsigned>(params.heads), static_cast<unsigned>(params.run_count)),
         dim3(kThreads), 0, stream, params);
}

}  // namespace adder::cuda
