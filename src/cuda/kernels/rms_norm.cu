// One block per row and group, four neighbouring elements per thread and round. Phases: (1) the
// weights of the first round are loaded; (2) PdlWait; (3) the row, and what the epilogue needs
// beside it, which for the first round stay in registers; sum of squares over warps and shared
// memory; (4) the scaled row. The order of sums depends on the width alone.
#include <cuda_bf16.h>

#include <algorithm>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/rms_norm.h"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

constexpr int kMostThreads = 512;

// Elements [at, at + 4) of a part of `size` elements, as far as they exist; others are zero.
// kFours: they lie on 16-byte boundaries and do not straddle the end.
template <bool kFours>
__device__ __forceinline__ float4 LoadFour(const float* from, int at, int size) {
  if constexpr (kFours) {
    return at < size ? *reinterpret_cast<const float4*>(from + at) : make_float4(0, 0, 0, 0);
  }
  return make_float4(at < size ? from[at] : 0.0f, at + 1 < size ? from[at + 1] : 0.0f,
                     at + 2 < size ? from[at + 2] : 0.0f, at + 3 < size ? from[at + 3] : 0.0f);
}
__device__ __forceinline__ float Squares(float4 x) {
  return fmaf(x.x, x.x, fmaf(x.y, x.y, fmaf(x.z, x.z, x.w * x.w)));
}

template <NormEpilogue kEpilogue, bool kFours>
__global__ void __launch_bounds__(kMostThreads)
    RmsNormKernel(const __grid_constant__ RmsNormParams p) {
  __shared__ float sums[kMostThreads / 32];
  const int step = 4 * static_cast<int>(blockDim.x);
  const int first = 4 * static_cast<int>(threadIdx.x);
  const int row = static_cast<int>(blockIdx.x);
  const int size = p.width / p.groups;
  const int begin = static_cast<int>(blockIdx.y) * size;
  const float* weight = p.weight + begin;
  const float4 first_weight = LoadFour<kFours>(weight, first, size);
  PdlWait();
  PdlTrigger();
  const int from = p.input_rows == nullptr ? row : p.input_rows[row];
  const float* x = p.input + static_cast<long long>(from) * p.stride + begin;
  float* out = p.output + static_cast<long long>(row) * p.stride + begin;
  uint16_t* rounded =
      p.rounded_output == nullptr
          ? nullptr
          : p.rounded_output + static_cast<long long>(row) * p.rounded_stride + begin;
  const float* beside = kEpilogue == NormEpilogue::kGate
                            ? p.gate + static_cast<long long>(from) * p.gate_stride + begin
                            : out;
  const auto load_beside = [&](int at) {
    return kEpilogue == NormEpilogue::kStore ? make_float4(0, 0, 0, 0)
                                             : LoadFour<kFours>(beside, at, size);
  };
  const float4 first_x = LoadFour<kFours>(x, first, size);
  const float4 first_beside = load_beside(first);
  float sum = Squares(first_x);
  for (int at = first + step; at < size; at += step) sum += Squares(LoadFour<kFours>(x, at, size));
  sum = BlockSum(sum, sums);
  const float factor = rsqrtf(sum / static_cast<float>(size) + p.eps);
  const auto finished = [&](float value, float of_weight, float other) {
    const float y = value * factor * of_weight;
    if constexpr (kEpilogue == NormEpilogue::kAdd) return fmaf(p.scale, y, other);
    if constexpr (kEpilogue == NormEpilogue::kGate) return y * (other / (1.0f + expf(-other)));
    return y;
  };
  const auto store = [&](int at, float4 values, float4 weights, float4 other) {
    if (at >= size) return;
    const float y[4] = {
        finished(values.x, weights.x, other.x), finished(values.y, weights.y, other.y),
        finished(values.z, weights.z, other.z), finished(values.w, weights.w, other.w)};
    if constexpr (kFours) {
      *reinterpret_cast<float4*>(out + at) = make_float4(y[0], y[1], y[2], y[3]);
      if (rounded == nullptr) return;
      const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(y[0], y[1]),
                                       __floats2bfloat162_rn(y[2], y[3])};
      *reinterpret_cast<uint2*>(rounded + at) = *reinterpret_cast<const uint2*>(pairs);
    } else {
#pragma unroll 1
      for (int i = 0; i < 4 && at + i < size; ++i) {
        out[at + i] = y[i];
        if (rounded != nullptr) rounded[at + i] = __bfloat16_as_ushort(__float2bfloat16_rn(y[i]));
      }
    }
  };
  store(first, first_x, first_weight, first_beside);
  for (int at = first + step; at < size; at += step) {
    store(at, LoadFour<kFours>(x, at, size), LoadFour<kFours>(weight, at, size), load_beside(at));
  }
}

}  // namespace

void LaunchRmsNorm(const RmsNormParams& params, cudaStream_t stream) {
  const int size = params.width / params.groups;
  // Weights and the rows of buffers begin on 16-byte boundaries.
  const bool fours = (size | params.stride | params.gate_stride | params.rounded_stride) % 4 == 0;
  const auto choose = [&]<bool kFours>() {
    return params.epilogue == NormEpilogue::kAdd    ? RmsNormKernel<NormEpilogue::kAdd, kFours>
           : params.epilogue == NormEpilogue::kGate ? RmsNormKernel<NormEpilogue::kGate, kFours>
                                                    : RmsNormKernel<NormEpilogue::kStore, kFours>;
  };
  const auto kernel =
      fours ? choose.template operator()<true>() : choose.template operator()<false>();
  const int threads = std::min((size + 127) / 128 * 32, kMostThreads);
  Launch("the RMSNorm kernel", kernel,
         dim3(static_cast<unsigned>(params.rows), static_cast<unsigned>(params.groups)),
         dim3(static_cast<unsigned>(threads)), 0, stream, params);
}

}  // namespace adder::cuda
