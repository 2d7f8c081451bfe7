// A block per row and group of the norm. Phases: (1) PdlWait; (2) with a norm the group's mean, if
// it is centered, and then the sum of squares about it: two passes, since the difference of large
// sums would lose digits; (3) the results, each by the thread that read the element, so that the
// input may be the output. Sums are taken in an order that depends on sizes alone.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/row_update.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr int kMostThreads = 256;

__global__ void __launch_bounds__(kMostThreads)
    RowUpdateKernel(const __grid_constant__ RowUpdateParams p) {
  __shared__ float of_warps[2][kMostThreads / 32];
  PdlWait();
  PdlTrigger();
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int row = static_cast<int>(blockIdx.x);
  const int from = p.input_rows == nullptr ? row : p.input_rows[row];
  const int size = p.width / static_cast<int>(gridDim.y);
  const int begin = static_cast<int>(blockIdx.y) * size;
  const float* x = p.input + static_cast<long long>(from) * p.input_stride;
  float* out = p.output + static_cast<long long>(row) * p.output_stride;
  float mean = 0;
  float factor = 1;
  if (p.norm.used) {
    if (p.norm.centered) {
      for (int i = begin + thread; i < begin + size; i += threads) mean += x[i];
      mean = BlockSum(mean, of_warps[0]) / static_cast<float>(size);
    }
    float squares = 0;
    for (int i = begin + thread; i < begin + size; i += threads) {
      squares = fmaf(x[i] - mean, x[i] - mean, squares);
    }
    squares = BlockSum(squares, of_warps[1]);
    factor = rsqrtf(squares / static_cast<float>(size) + p.norm.eps);
  }
  const float total = p.total == nullptr ? 1.0f : *p.total;
  const auto at = [](const float* vector, int i, float absent) {
    return vector == nullptr ? absent : vector[i];
  };
  for (int i = begin + thread; i < begin + size; i += threads) {
    float y = x[i];
    if (p.norm.used) {
      y = (y - mean) * factor * at(p.norm.weight, i % p.norm.weight_size, 1);
      y += at(p.norm.bias, i, 0);
    }
    y = p.scale * (y + at(p.add_bias, i, 0)) * at(p.add_scale, i, 1);
    if (p.keep != 0) y += p.keep * (out[i] + at(p.keep_bias, i, 0)) * at(p.keep_scale, i, 1);
    y *= total;
    out[i] = y;
    if (p.rounded_output != nullptr) {
      p.rounded_output[static_cast<long long>(row) * p.rounded_stride + i] =
          __bfloat16_as_ushort(__float2bfloat16_rn(y));
    }
  }
}

// Elements of a thread in registers.
constexpr int kHeld = 4;

// A norm and nothing else, of rows of at most kHeld * kMostThreads elements. The same phases, but
// the code is short, since kernels that run once in a step wait for their instructions, and weight
// and bias are loaded before PdlWait.
__global__ void __launch_bounds__(kMostThreads)
    RowNormKernel(const __grid_constant__ RowUpdateParams p) {
  __shared__ float of_warps[2][kMostThreads / 32];
  const int row = static_cast<int>(blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  float weight[kHeld];
  float bias[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = thread + i * threads;
    weight[i] = at < p.width && p.norm.weight != nullptr ? p.norm.weight[at] : 1.0f;
    bias[i] = at < p.width && p.norm.bias != nullptr ? p.norm.bias[at] : 0.0f;
  }
  PdlWait();
  PdlTrigger();
  const int from = p.input_rows == nullptr ? row : p.input_rows[row];
  const float* input = p.input + static_cast<long long>(from) * p.input_stride;
  float* output = p.output + static_cast<long long>(row) * p.output_stride;
  const float part = 1.0f / static_cast<float>(p.width);
  float x[kHeld];
  float mean = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = thread + i * threads;
    x[i] = at < p.width ? input[at] : 0.0f;
    mean += x[i];
  }
  mean = p.norm.centered ? BlockSum(mean, of_warps[0]) * part : 0.0f;
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    x[i] -= mean;
    if (thread + i * threads < p.width) squares = fmaf(x[i], x[i], squares);
  }
  const float factor = rsqrtf(fmaf(BlockSum(squares, of_warps[1]), part, p.norm.eps));
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int at = thread + i * threads;
    if (at >= p.width) continue;
    const float y = fmaf(x[i] * factor, weight[i], bias[i]);
    output[at] = y;
    if (p.rounded_output != nullptr) {
      p.rounded_output[static_cast<long long>(row) * p.rounded_stride + at] =
          __bfloat16_as_ushort(__float2bfloat16_rn(y));
    }
  }
}

bool IsNormAlone(const RowUpdateParams& p) {
  return p.norm.used && p.norm.groups == 1 &&
         (p.norm.weight == nullptr || p.norm.weight_size == p.width) && p.add_bias == nullptr &&
         p.add_scale == nullptr && p.scale == 1 && p.keep == 0 && p.total == nullptr;
}

}  // namespace

void LaunchRowUpdate(const RowUpdateParams& params, cudaStream_t stream) {
  if (params.rows == 0 || params.width == 0) return;
  const int groups = params.norm.used ? params.norm.groups : 1;
  const int threads = std::min((params.width / groups + 31) / 32 * 32, kMostThreads);
  const bool is_norm = IsNormAlone(params) && params.width <= kHeld * kMostThreads;
  Launch("the kernel that updates rows", is_norm ? RowNormKernel : RowUpdateKernel,
         dim3(static_cast<unsigned>(params.rows), static_cast<unsigned>(groups)),
         dim3(static_cast<unsigned>(threads)), 0, stream, params);
}

}  // namespace adder::cuda
