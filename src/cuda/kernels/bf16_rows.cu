// Kernels that only move and convert: normalised activations and unpacked weights as the operands
// of dense products, gated activations, biases.
//
// Each kernel waits for the one before, lets the next start, then reads and writes; no block
// depends on another. Norm: one warp or several own one group of one row and keep it in registers
// between the sum of squares and the scaling. Unpack: a warp owns one tile and chunk of the packed
// matrix.
#include "cuda/kernels/bf16_rows.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/weight_format_dispatch.h"

namespace adder::cuda {
namespace {

constexpr int kNormThreads = 256;
// Groups of four values of a row that a thread keeps.
constexpr int kNormKept = 8;
constexpr int kThreads = 256;

__device__ __forceinline__ float2 WidenPair(unsigned both) {
  return make_float2(__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u));
}

__device__ __forceinline__ float4 LoadFour(const float* from, int left) {
  if (left >= 4) return *reinterpret_cast<const float4*>(from);
  return make_float4(left > 0 ? from[0] : 0.0f, left > 1 ? from[1] : 0.0f,
                     left > 2 ? from[2] : 0.0f, 0.0f);
}

__device__ __forceinline__ float4 LoadFour(const __nv_bfloat16* from, int left) {
  if (left >= 4) {
    const uint2 words = *reinterpret_cast<const uint2*>(from);
    const float2 low = WidenPair(words.x);
    const float2 high = WidenPair(words.y);
    return make_float4(low.x, low.y, high.x, high.y);
  }
  return make_float4(left > 0 ? __bfloat162float(from[0]) : 0.0f,
                     left > 1 ? __bfloat162float(from[1]) : 0.0f,
                     left > 2 ? __bfloat162float(from[2]) : 0.0f, 0.0f);
}

// kLanes threads per group of a row, whole warps. What does not fit into registers is read twice.
template <int kLanes, class Input>
__global__ void __launch_bounds__(kNormThreads)
    Bf16NormKernel(const __grid_constant__ Bf16NormParams p, const Input* input) {
  __shared__ float sums[kNormThreads / 32];
  const int item = static_cast<int>(blockIdx.x) * (kNormThreads / kLanes) +
                   static_cast<int>(threadIdx.x) / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int group = item % p.groups;
  const int row = item / p.groups;
  const bool used = row < p.rows;
  const int size = p.width / p.groups;
  const int begin = group * size;
  // The last group also writes the padding.
  const int end = group + 1 == p.groups ? Bf16Stride(p.width) - begin : size;
  const Input* x = input + static_cast<long long>(used ? row : 0) * p.stride + begin;
  __nv_bfloat16* out = p.output + static_cast<long long>(row) * Bf16Stride(p.width) + begin;
  const float4 zero = make_float4(0, 0, 0, 0);
  float4 weights[kNormKept];
#pragma unroll
  for (int i = 0; i < kNormKept; ++i) {
    const int at = 4 * (lane + i * kLanes);
    weights[i] =
        p.weight != nullptr && at < size ? LoadFour(p.weight + begin + at, size - at) : zero;
  }
  PdlWait();
  PdlTrigger();
  float4 kept[kNormKept];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kNormKept; ++i) {
    const int at = 4 * (lane + i * kLanes);
    kept[i] = used && at < size ? LoadFour(x + at, size - at) : zero;
  }
#pragma unroll
  for (int i = 0; i < kNormKept; ++i) {
    sum += kept[i].x * kept[i].x + kept[i].y * kept[i].y + kept[i].z * kept[i].z +
           kept[i].w * kept[i].w;
  }
  constexpr int kFirstRest = 4 * kNormKept * kLanes;
  float factor = 1;
  if (p.weight != nullptr) {
    for (int at = kFirstRest + 4 * lane; at < size; at += 4 * kLanes) {
      const float4 v = LoadFour(x + at, size - at);
      sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if constexpr (kLanes > 32) {
      const int warp = static_cast<int>(threadIdx.x) / 32;
      if (threadIdx.x % 32 == 0) sums[warp] = sum;
      __syncthreads();
      constexpr int kWarps = kLanes / 32;
      sum = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) sum += sums[warp / kWarps * kWarps + w];
    }
    factor = rsqrtf(sum / static_cast<float>(size) + p.eps);
  }
  if (!used) return;
  const auto store = [&](int at, float4 v, float4 w) {
    if (p.weight != nullptr) {
      v = make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z,
                      v.w * factor * w.w);
    }
    if (p.gate != nullptr && at < size) {
      const float4 z =
          LoadFour(p.gate + static_cast<long long>(row) * p.gate_stride + begin + at, size - at);
      v = make_float4(v.x * Silu(z.x), v.y * Silu(z.y), v.z * Silu(z.z), v.w * Silu(z.w));
    }
    *reinterpret_cast<uint2*>(out + at) = make_uint2(PackBf16(v.x, v.y), PackBf16(v.z, v.w));
  };
#pragma unroll
  for (int i = 0; i < kNormKept; ++i) {
    const int at = 4 * (lane + i * kLanes);
    if (at < end) store(at, kept[i], weights[i]);
  }
  for (int at = kFirstRest + 4 * lane; at < end; at += 4 * kLanes) {
    const int left = size - at;
    const bool weighted = p.weight != nullptr && left > 0;
    store(at, left > 0 ? LoadFour(x + at, left) : zero,
          weighted ? LoadFour(p.weight + begin + at, left) : zero);
  }
}

// Eight consecutive values of a row of a tile, unscaled when quantised: see packed_matrix.h.
template <WeightFormat F>
__device__ __forceinline__ void ExpandEight(const uint4 (&raw)[LoadsOf(F)], int h, int r,
                                            float (&out)[8]) {
  if constexpr (F == WeightFormat::kQ4) {
    const unsigned word = Component(raw[0], 2 * h + r);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = static_cast<float>(word >> (4 * (i / 2 + 4 * (i % 2))) & 15u);
    }
  } else if constexpr (F == WeightFormat::kQ8) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = static_cast<float>(Component(raw[h], 2 * (i / 4) + r) >> (8 * (i % 4)) & 255u);
    }
  } else if constexpr (F == WeightFormat::kF32) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      out[i] = __uint_as_float(Component(raw[4 * h + 2 * r + i / 4], i % 4));
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const unsigned word = Component(raw[2 * h + r], i / 2) >> (16 * (i % 2));
      const auto bits = static_cast<unsigned short>(word);
      out[i] = F == WeightFormat::kBf16 ? __uint_as_float(word << 16)
                                        : __half2float(__ushort_as_half(bits));
    }
  }
}

template <WeightFormat F, bool kWide>
__global__ void __launch_bounds__(kThreads) UnpackKernel(PackedMatrix m, __nv_bfloat16* output) {
  const long long index = blockIdx.y;
  const int lane = threadIdx.x % 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const long long place =
      (static_cast<long long>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) / 32;
  const bool used = place < static_cast<long long>(m.tiles) * m.chunks;
  constexpr int kLoads = LoadsOf(F);
  uint4 raw[kLoads];
  ScalePairs<kWide> pairs;
  if (used) {
    const uint4* data = m.data + index * m.data_stride + place * kLoads * 32 + lane;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) raw[i] = __ldg(data + i * 32);
    if constexpr (Fragment<F>::kQuantized) {
      pairs.Load(static_cast<const unsigned char*>(m.scales) + index * m.scales_stride, place, g);
    }
  }
  PdlWait();
  PdlTrigger();
  if (!used) return;
  const int tile = static_cast<int>(place / m.chunks);
  const int chunk = static_cast<int>(place % m.chunks);
  const int stride = Bf16Stride(m.cols);
  output += index * m.rows * stride;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = LogicalRow(m.interleaved, m.rows, tile, g + 8 * r);
    if (row >= m.rows) continue;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int col = chunk * kChunkCols + 32 * h + 8 * t;
      if (col >= stride) continue;
      float values[8];
      ExpandEight<F>(raw, h, r, values);
      if constexpr (Fragment<F>::kQuantized) {
        const float2 pair = pairs.Get(h, r, m.scale_format);
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = fmaf(pair.x, values[i], pair.y);
      }
      if (col + 8 > m.cols) {
#pragma unroll
        for (int i = 0; i < 8; ++i) values[i] = col + i < m.cols ? values[i] : 0.0f;
      }
      const uint4 words =
          make_uint4(PackBf16(values[0], values[1]), PackBf16(values[2], values[3]),
                     PackBf16(values[4], values[5]), PackBf16(values[6], values[7]));
      *reinterpret_cast<uint4*>(output + static_cast<long long>(row) * stride + col) = words;
    }
  }
}

// A thread owns eight values of a row. kVectors: gates are read sixteen bytes at a time.
template <bool kVectors>
__global__ void __launch_bounds__(kThreads) SiluMulKernel(const __grid_constant__ SiluMulParams p) {
  PdlWait();
  PdlTrigger();
  const int width = p.width;
  const float* bias = p.bias;
  const int stride = Bf16Stride(width);
  const long long item = static_cast<long long>(blockIdx.x) * kThreads + threadIdx.x;
  const int per_row = stride / 8;
  const int row = static_cast<int>(item / per_row);
  const int col = static_cast<int>(item % per_row) * 8;
  if (row >= p.rows) return;
  const __nv_bfloat16* gate = p.gates + static_cast<long long>(row) * Bf16Stride(2 * width) + col;
  float a[8];
  float b[8];
  if constexpr (kVectors) {
    const uint4 low = *reinterpret_cast<const uint4*>(gate);
    const uint4 high = *reinterpret_cast<const uint4*>(gate + width);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float2 x = WidenPair(Component(low, i));
      const float2 y = WidenPair(Component(high, i));
      a[2 * i] = x.x, a[2 * i + 1] = x.y;
      b[2 * i] = y.x, b[2 * i + 1] = y.y;
    }
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const bool inside = col + i < width;
      a[i] = inside ? __bfloat162float(gate[i]) : 0.0f;
      b[i] = inside ? __bfloat162float(gate[width + i]) : 0.0f;
    }
  }
  if (bias != nullptr) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      if (col + i >= width) continue;
      a[i] += bias[col + i];
      b[i] += bias[width + col + i];
    }
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) a[i] = __fdividef(a[i], 1.0f + __expf(-a[i])) * b[i];
  if (p.row_gate != nullptr) {
    const float of_row = p.row_gate[static_cast<long long>(row) * p.row_gate_stride];
    const float factor = __fdividef(1.0f, 1.0f + __expf(-of_row));
#pragma unroll
    for (int i = 0; i < 8; ++i) a[i] *= factor;
  }
  *reinterpret_cast<uint4*>(p.output + static_cast<long long>(row) * stride + col) = make_uint4(
      PackBf16(a[0], a[1]), PackBf16(a[2], a[3]), PackBf16(a[4], a[5]), PackBf16(a[6], a[7]));
}

__global__ void __launch_bounds__(kThreads)
    AddBiasKernel(const float* bias, float scale, int width, float* output, int stride) {
  PdlWait();
  PdlTrigger();
  float* out = output + static_cast<long long>(blockIdx.y) * stride;
  const int col = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (col < width) out[col] = fmaf(scale, bias[col], out[col]);
}

__global__ void __launch_bounds__(kThreads)
    WidenKernel(const __nv_bfloat16* input, int width, int part, float* output, int stride) {
  PdlWait();
  PdlTrigger();
  const int col = static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x);
  if (col >= width) return;
  const long long row = blockIdx.y;
  const int number = col / part;
  const __nv_bfloat16* from = input + (row * (width / part) + number) * Bf16Stride(part);
  output[row * stride + col] = __bfloat162float(from[col - number * part]);
}

unsigned Blocks(long long items) {
  return static_cast<unsigned>((items + kThreads - 1) / kThreads);
}

}  // namespace

void LaunchBf16Norm(const Bf16NormParams& params, cudaStream_t stream) {
  const int size = params.width / params.groups;
  const auto launch = [&]<int kLanes>() {
    constexpr int kItems = kNormThreads / kLanes;
    constexpr char kName[] = "the RMSNorm kernel";
    const dim3 grid(static_cast<unsigned>((params.rows * params.groups + kItems - 1) / kItems));
    const dim3 block(kNormThreads);
    if (params.bf16_input != nullptr) {
      Launch(kName, Bf16NormKernel<kLanes, __nv_bfloat16>, grid, block, 0, stream, params,
             params.bf16_input);
    } else {
      Launch(kName, Bf16NormKernel<kLanes, float>, grid, block, 0, stream, params, params.input);
    }
  };
  constexpr int kPerWarp = 32 * 4 * kNormKept;
  if (size <= kPerWarp) return launch.template operator()<32>();
  if (size <= 2 * kPerWarp) return launch.template operator()<64>();
  if (size <= 4 * kPerWarp) return launch.template operator()<128>();
  launch.template operator()<256>();
}

void LaunchUnpack(const PackedMatrix& matrix, int count, __nv_bfloat16* output,
                  cudaStream_t stream) {
  const unsigned blocks = Blocks(static_cast<long long>(matrix.tiles) * matrix.chunks * 32);
  const auto launch = [&]<WeightFormat kFormat, bool kWide>() {
    Launch("the kernel that unpacks weights", UnpackKernel<kFormat, kWide>,
           dim3(blocks, static_cast<unsigned>(count)), dim3(kThreads), 0, stream, matrix, output);
  };
  WithWeightFormat(matrix, launch);
}

void LaunchSiluMul(const SiluMulParams& params, cudaStream_t stream) {
  const unsigned blocks =
      Blocks(static_cast<long long>(params.rows) * (Bf16Stride(params.width) / 8));
  Launch("the gate kernel", params.width % 8 == 0 ? SiluMulKernel<true> : SiluMulKernel<false>,
         dim3(blocks), dim3(kThreads), 0, stream, params);
}

void LaunchAddBias(const float* bias, float scale, int rows, int width, float* output, int stride,
                   cudaStream_t stream) {
  Launch("the bias kernel", AddBiasKernel, dim3(Blocks(width), static_cast<unsigned>(rows)),
         dim3(kThreads), 0, stream, bias, scale, width, output, stride);
}

void LaunchWiden(const __nv_bfloat16* input, int rows, int width, int parts, float* output,
                 int stride, cudaStream_t stream) {
  Launch("the kernel that widens activations", WidenKernel,
         dim3(Blocks(width), static_cast<unsigned>(rows)), dim3(kThreads), 0, stream, input, width,
         width / parts, output, stride);
}

}  // namespace adder::cuda
