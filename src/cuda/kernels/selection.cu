// Blocks of a row (blockIdx.y): the first norms B, the second norms C, the others copy x, kThreads
// elements each.
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/selection.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 128;

__global__ void __launch_bounds__(kThreads)
    SelectionKernel(const __grid_constant__ SelectionParams p) {
  __shared__ float of_warps[kThreads / 32];
  PdlWait();
  PdlTrigger();
  const auto row = static_cast<long long>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  float* output = p.output + row * (p.inner + 2 * p.states);
  const int block = static_cast<int>(blockIdx.y);
  if (block >= 2) {
    const int i = (block - 2) * kThreads + thread;
    if (i < p.inner) output[i] = p.x[row * p.x_stride + i];
    return;
  }
  const SmallNorm norm = block == 0 ? p.b_norm : p.c_norm;
  const float* from = p.b_c + row * p.b_c_stride + block * p.states;
  float* to = output + p.inner + block * p.states;
  float factor = 1;
  if (norm.used) {
    float squares = 0;
    for (int n = thread; n < p.states; n += kThreads) squares = fmaf(from[n], from[n], squares);
    factor = rsqrtf(BlockSum(squares, of_warps) / static_cast<float>(p.states) + norm.eps);
  }
  for (int n = thread; n < p.states; n += kThreads) {
    to[n] = from[n] * factor * (norm.weight == nullptr ? 1.0f : norm.weight[n]);
  }
}

}  // namespace

void LaunchSelection(const SelectionParams& params, cudaStream_t stream) {
  Launch("the selection kernel", SelectionKernel,
         dim3(static_cast<unsigned>(params.rows),
              static_cast<unsigned>(2 + (params.inner + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, stream, params);
}

}  // namespace adder::cuda
