// A block owns the elements of one row that are normed together: a part of a head, a head, or
// several. Phases: (1) PdlWait; (2) where the norm comes after it, rotation of the block's heads in
// place, a pair per thread, and a barrier; (3) sum of squares; (4) the scaled elements. The order
// of sums depends on sizes alone, so a row's result does not depend on the batch. Precondition:
// what is normed together after a rotation is whole heads.
#include <algorithm>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/qk_norm.h"
#include "cuda/kernels/rotation.cuh"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr int kMostThreads = 256;

// Elements that one block takes of rows of which `norm` is asked.
__host__ __device__ int BlockElements(const HeadNorm& norm, int head_dim) {
  return norm.part == 0 ? head_dim : norm.part;
}
// Blocks for one row of `heads` heads; without a norm only a rotation needs any.
int BlocksOf(const HeadNorm& norm, int heads, int head_dim, bool rotates) {
  if (norm.part == 0 && !rotates) return 0;
  return heads * head_dim / BlockElements(norm, head_dim);
}

__global__ void __launch_bounds__(kMostThreads)
    QkNormKernel(const __grid_constant__ AttentionParams p, const int q_blocks) {
  __shared__ float of_warps[kMostThreads / 32];
  PdlWait();
  PdlTrigger();
  const int row = static_cast<int>(blockIdx.y);
  const bool is_key = static_cast<int>(blockIdx.x) >= q_blocks;
  const HeadNorm norm = is_key ? p.k_norm : p.q_norm;
  const int count = BlockElements(norm, p.head_dim);
  // In the row's q or k.
  const int begin = (static_cast<int>(blockIdx.x) - (is_key ? q_blocks : 0)) * count;
  float* x = p.qkv + static_cast<long long>(row) * p.qkv_stride +
             (is_key ? p.heads * p.head_dim : 0) + begin;
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  if (p.norm_after_rotation) {
    const SequenceRun run = p.runs[p.row_runs[row]];
    const int position = run.position + row - run.row;
    const int half = p.rotary_dim / 2;
    for (int i = thread; i < count / p.head_dim * half; i += threads) {
      float* head = x + i / half * p.head_dim;
      const int pair = i % half;
      const float2 turned = Turned(Rotation(p, position, pair), head[pair], head[pair + half]);
      head[pair] = turned.x;
      head[pair + half] = turned.y;
    }
    __syncthreads();
  }
  if (norm.part == 0) return;
  float squares = 0;
  for (int i = thread; i < count; i += threads) squares = fmaf(x[i], x[i], squares);
  squares = BlockSum(squares, of_warps);
  const float factor = rsqrtf(squares / static_cast<float>(count) + norm.eps);
  for (int i = thread; i < count; i += threads) {
    x[i] *= factor * norm.weight[(begin + i) % norm.size];
  }
}

}  // namespace

AttentionParams LaunchQkNorm(const AttentionParams& params, cudaStream_t stream) {
  AttentionParams rest = params;
  rest.q_norm = rest.k_norm = {};
  rest.norm_after_rotation = false;
  const bool rotates = params.norm_after_rotation;
  const int q_blocks = BlocksOf(params.q_norm, params.heads, params.head_dim, rotates);
  const int k_blocks = BlocksOf(params.k_norm, params.kv_heads, params.head_dim, rotates);
  if (q_blocks + k_blocks == 0 || params.rows == 0) return rest;
  const int most = std::max(BlockElements(params.q_norm, params.head_dim),
                            BlockElements(params.k_norm, params.head_dim));
  Launch("the kernel of norms of q and k", QkNormKernel,
         dim3(static_cast<unsigned>(q_blocks + k_blocks), static_cast<unsigned>(params.rows)),
         dim3(static_cast<unsigned>(std::clamp((most + 31) / 32 * 32, 32, kMostThreads))), 0,
         stream, params, q_blocks);
  if (rotates) {
    rest.inverse_frequencies = nullptr;
    rest.rotary_dim = 0;
  }
  return rest;
}

}  // namespace adder::cuda
