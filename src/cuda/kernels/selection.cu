// Gathering: of the blocks of a row (blockIdx.y) the first norms B, the second norms C, the others
// copy x, kThreads elements each. Rounding: a warp owns a part of a row, which it keeps in
// registers between the sum of squares and the scaling as far as it fits, and reads twice beyond.
#include "cuda/kernels/bf16_rows.h"
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

// Elements of a part that a lane keeps.
constexpr int kKept = 8;

__global__ void __launch_bounds__(kThreads)
    RoundPartsKernel(const __grid_constant__ RoundedParts p) {
  const int item =
      static_cast<int>(blockIdx.x) * (kThreads / 32) + static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = item / p.count;
  PdlWait();
  PdlTrigger();
  if (row >= p.rows) return;
  const RoundedPart& part = p.parts[item % p.count];
  const float* from = p.input + static_cast<long long>(row) * p.input_stride + part.begin;
  __nv_bfloat16* to = part.output + static_cast<long long>(row) * part.output_stride;
  float kept[kKept];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int n = lane + 32 * i;
    kept[i] = n < part.size ? from[n] : 0.0f;
    squares = fmaf(kept[i], kept[i], squares);
  }
  for (int n = lane + 32 * kKept; n < part.size; n += 32) squares = fmaf(from[n], from[n], squares);
  const SmallNorm& norm = part.norm;
  const float factor =
      norm.used ? rsqrtf(WarpSum(squares) / static_cast<float>(part.size) + norm.eps) : 1.0f;
  const auto store = [&](int n, float x) {
    const float weight = norm.weight == nullptr || n >= part.size ? 1.0f : norm.weight[n];
    to[n] = __float2bfloat16_rn(x * factor * weight);
  };
  const int end = Bf16Stride(part.size);
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    if (lane + 32 * i < end) store(lane + 32 * i, kept[i]);
  }
  for (int n = lane + 32 * kKept; n < end; n += 32) store(n, n < part.size ? from[n] : 0.0f);
}

}  // namespace

void LaunchRoundParts(const RoundedParts& params, cudaStream_t stream) {
  constexpr int kItems = kThreads / 32;
  Launch("the kernel that rounds a selection", RoundPartsKernel,
         dim3(static_cast<unsigned>((params.rows * params.count + kItems - 1) / kItems)),
         dim3(kThreads), 0, stream, params);
}

void LaunchSelection(const SelectionParams& params, cudaStream_t stream) {
  Launch("the selection kernel", SelectionKernel,
         dim3(static_cast<unsigned>(params.rows),
              static_cast<unsigned>(2 + (params.inner + kThreads - 1) / kThreads)),
         dim3(kThreads), 0, stream, params);
}

}  // namespace adder::cuda
