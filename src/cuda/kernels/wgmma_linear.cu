// The matrix kernel of larger batches on GPUs of compute capability 9.0, for matrices whose columns
// one cluster can hold: bf16 activations and dequantised weights in shared memory, products of
// warpgroups. Other GPUs, builds without code for sm_90a and other sizes keep batch_linear.cu.
//
// Phases: (1) each warp copies its packed weights to shared memory and turns them into bf16 (scale,
// bias and the norm's weight are applied to them): what packed_matrix.h has a lane hold, runs of
// eight columns, are 16-byte pieces of an operand's rows; (2) PdlWait, after which as little as
// possible is left to do; (3) all of the block's tokens and columns are copied to shared memory, a
// barrier per chunk; (4) products start as chunks arrive, and meanwhile a norm's sums of squares
// are made of the tokens; (5) sums are sent to the block of the cluster that finishes their rows,
// where each gets the norm's factor, which needs the whole row, the bias and the epilogue.
//
// Ownership: a cluster owns kTokens tokens and row_groups * 64 rows, a block its rank's part of the
// columns, a warpgroup 64 rows and every column_groups-th chunk, a warp 16 of the rows, whose
// packed weights it alone copies and reads. Rank r finishes the r-th part of each 64 rows.
// Barriers: of the block when the norm's weight is there, and when all weights are turned; of the
// cluster, before sums are sent, because their place may be that of packed weights; one that counts
// the bytes of sums, or of the block where it has no cluster.
#include <cuda.h>

#include "cuda/kernels/batch_products.cuh"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/tensor_core.cuh"
#include "cuda/kernels/token_map.h"
#include "cuda/kernels/wgmma.cuh"
#include "cuda/kernels/wgmma_linear.h"

namespace adder::cuda {
namespace {

struct WgmmaParams {
  CUtensorMap tokens;  // of the rounded input
  LinearParams linear;
  WgmmaGeometry geometry;
  WgmmaLayout layout;
  int split_bits;   // log2 of geometry.split
  int column_bits;  // log2 of geometry.column_groups
  FinishParams finish;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Adds the squares of 16 columns of 16 tokens, whose operand is `x`: the diagonal of x times
// itself, of the first eight tokens in `low`, of the others in rows 8 to 15 of `high`.
__device__ __forceinline__ void AddSquares(const unsigned (&x)[4], float (&low)[4],
                                           float (&high)[4]) {
  FreeMma(low, x, x[0], x[2]);
  FreeMma(high, x, x[1], x[3]);
}

__device__ __forceinline__ void AddFour(float (&sums)[4], const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w;
}

#endif

template <WeightFormat F, bool kWide, int kTokens>
__global__ void __launch_bounds__(128 * kMostWgmmaGroups)
    WgmmaLinearKernel(const __grid_constant__ WgmmaParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kLoads = LoadsOf(F);
  constexpr int kScaleBytes = !Fragment<F>::kQuantized ? 0 : kWide ? 256 : 64;
  constexpr int kUnit = kLoads * 512 + kScaleBytes;
  constexpr int kChunkBytes = kTokens * kChunkCols * 2;
  const LinearParams& p = params.linear;
  const PackedMatrix& m = p.matrix;
  const WgmmaLayout& layout = params.layout;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const int g = lane / 4;
  const int t = lane % 4;
  const int column_groups = params.geometry.column_groups;
  const int row_groups = params.geometry.row_groups;
  const int group = warp / 4;
  const int row_group = group >> params.column_bits;
  const int column_group = group & (column_groups - 1);
  const int of_group = warp % 4;
  const int split = 1 << params.split_bits;
  const int rank = blockIdx.x & (split - 1);
  const int first_token = blockIdx.y * kTokens;
  const int first_chunk = m.chunks * rank >> params.split_bits;
  const int chunks = (m.chunks * (rank + 1) >> params.split_bits) - first_chunk;
  const bool has_norm = p.norm_weight != nullptr;
  const int row_block = (blockIdx.x >> params.split_bits) * row_groups + row_group;
  extern __shared__ __align__(1024) char bytes[];
  const unsigned shared = SharedAddress(bytes);
  // Of each chunk of tokens, and last of the sums.
  __shared__ uint64_t arrivals[kWgmmaMostChunks + 1];
  const unsigned sums_arrival = SharedAddress(arrivals + kWgmmaMostChunks);

  // This warp's packed weights, in groups of copies of their own; a tile beyond the matrix repeats
  // the last one, and its sums are not stored.
  const int my_chunks = (chunks - column_group + column_groups - 1) >> params.column_bits;
  const char* packed = bytes + layout.packed + warp * (layout.held * kUnit);
  {
    const int tile = min(row_block * 4 + of_group, m.tiles - 1);
    const long long place = static_cast<long long>(tile) * m.chunks + first_chunk + column_group;
    const char* data = reinterpret_cast<const char*>(m.data) + place * (kLoads * 512) + lane * 16;
    const char* scales = static_cast<const char*>(m.scales) + place * kScaleBytes + lane * 16;
    unsigned to = SharedAddress(packed) + lane * 16;
#pragma unroll 1
    for (int c = 0; c < kWgmmaMostHeld; ++c) {
      if (c < my_chunks) {
#pragma unroll
        for (int i = 0; i < kLoads; ++i) CopyAsync(to + i * 512, data + i * 512, true);
        if (lane < kScaleBytes / 16) CopyAsync(to + kLoads * 512, scales, true);
        data += column_groups * (kLoads * 512);
        scales += column_groups * kScaleBytes;
        to += kUnit;
      }
      CopyCommit();
    }
  }
  if (threadIdx.x < chunks) InitArrival(SharedAddress(arrivals + threadIdx.x));
  const int groups = row_groups * column_groups;
  if (threadIdx.x == 0) {
    InitArrival(sums_arrival);
    PrefetchMap(&params.tokens);
    if (split > 1) {
      const int squares_bytes = has_norm ? 4 << params.split_bits : 0;
      ExpectBytes(sums_arrival, groups * kTokens * (kWgmmaRows * 4 + squares_bytes));
    }
  }
  FenceArrivals();
  unsigned* shared_norm = reinterpret_cast<unsigned*>(bytes + layout.norm);
  if (has_norm) {
#pragma unroll 1
    for (int i = threadIdx.x; i < chunks * (kChunkCols / 2); i += blockDim.x) {
      const int col = first_chunk * kChunkCols + 2 * i;
      float2 weights = make_float2(0, 0);
      if (col < m.cols) weights = *reinterpret_cast<const float2*>(p.norm_weight + col);
      shared_norm[i] = PackBf16(weights.x, weights.y);
    }
    __syncthreads();
  }

#pragma unroll 1
  for (int c = 0; c < my_chunks; ++c) {
    CopyWait<kWgmmaMostHeld - 1>();
    CopyCommit();
    __syncwarp();
    uint4 norm[2] = {};
    if (has_norm) {
      const uint4* from = reinterpret_cast<const uint4*>(
          shared_norm + (column_group + c * column_groups) * (kChunkCols / 2) + 4 * t);
      norm[0] = from[0];
      norm[1] = from[4];
    }
    unsigned a[4][4];
    WeightsAsBf16<F, kWide>(packed + c * kUnit, m.scale_format, has_norm, norm, a);
    // A lane's runs of eight columns are the pieces of a row.
    char* to = bytes + layout.weights + (group * layout.held + c) * kWgmmaWeightBytes;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        *reinterpret_cast<uint4*>(to +
                                  UnitOffset<kChunkCols>(of_group * 16 + g + 8 * r, 4 * h + t)) =
            make_uint4(a[2 * h][r], a[2 * h][2 + r], a[2 * h + 1][r], a[2 * h + 1][2 + r]);
      }
    }
  }
  FenceStores();
  __syncthreads();
  if (split > 1) ClusterArriveRelaxed();

  // The first use of a parameter is slow: better now.
  asm volatile("" ::"l"(p.output), "l"(p.rounded_output), "l"(p.bias), "r"(p.tokens),
               "r"(p.output_stride), "r"(p.rounded_output_stride), "f"(p.norm_eps),
               "f"(params.finish.inverse_cols), "f"(params.finish.scale));
  PdlWait();
  PdlTrigger();
  if (lane == 0) {
#pragma unroll 1
    for (int i = warp; i < chunks; i += 4 * groups) {
      const unsigned arrival = SharedAddress(arrivals + i);
      ExpectBytes(arrival, kChunkBytes);
      CopyBox(shared + i * kChunkBytes, &params.tokens, (first_chunk + i) * kChunkCols, first_token,
              arrival);
    }
  }
  __syncwarp();

  // Sums of one row and all tokens lie together; of 16 tokens in the order in which a lane has
  // them: 2 t, 2 t + 1, 2 t + 8, 2 t + 9, then those of the next t.
  constexpr int kPitch = WgmmaPitch(kTokens);
  const bool gated = p.epilogue == LinearEpilogue::kSiluMul;
  const int row_bits = 6 - params.split_bits;  // of the rows that this block finishes
  const int out_bits = row_bits - gated;       // of those that it stores
  const int out_rows = m.rows >> gated;
  const int first_row = (row_block * kWgmmaRows + (rank << row_bits)) >> gated;
  const int parts = column_groups << params.split_bits;
  const unsigned part_floats = kPitch << row_bits;
  float* sums = reinterpret_cast<float*>(bytes + layout.sums) + row_group * parts * part_floats;
  float* squares = reinterpret_cast<float*>(bytes + layout.squares);
  const int items = kTokens / 4 << out_bits;
  const int threads = 128 * column_groups;
  const int thread = threadIdx.x - row_group * threads;
  float old[4] = {};
  // An item is a row of results and four tokens: the first, and 1, 8 and 9 after it. What an item
  // adds to; that of the first comes while the products are made.
  const auto token_of = [&](int item) {
    const int four = item >> out_bits;
    return first_token + four / 4 * 16 + four % 4 * 2;
  };
  const auto row_of = [&](int item) { return first_row + (item & ((1 << out_bits) - 1)); };
  const auto load_old = [&](int item) {
    if (p.epilogue != LinearEpilogue::kAdd || row_of(item) >= out_rows) return;
    const int token = token_of(item);
    const float* from = p.output + static_cast<long long>(token) * p.output_stride + row_of(item);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int after = i % 2 + i / 2 * 8;
      if (token + after < p.tokens) old[i] = from[after * p.output_stride];
    }
  };
  load_old(thread);

  float acc[kTokens / 2];
  float low[2][4] = {};
  float high[2][4] = {};
  const uint64_t weights =
      OperandInShared(shared + layout.weights + group * layout.held * kWgmmaWeightBytes);
  const uint64_t tokens = OperandInShared(shared + column_group * kChunkBytes);
#pragma unroll 1
  for (int c = 0; c < my_chunks; ++c) {
    const int chunk = column_group + c * column_groups;
    WaitArrival(SharedAddress(arrivals + chunk), 0);
    FenceRegisters();
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      // Addresses in operands are in units of 16 bytes.
      MultiplyGroup<kTokens>(acc, weights + c * (kWgmmaWeightBytes / 16) + 2 * j,
                             tokens + c * column_groups * (kChunkBytes / 16) + 2 * j, c | j);
    }
    CommitProducts();
    if (has_norm && (c & (row_groups - 1)) == row_group && of_group < kTokens / 16) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        unsigned x[4];
        LoadA<kChunkCols>(x, shared + chunk * kChunkBytes, of_group * 16, 2 * j, lane);
        AddSquares(x, low[j % 2], high[j % 2]);
      }
    }
  }
  WaitProducts<0>();

  // All blocks of the cluster have turned their weights, whose packed form may lie where sums go.
  if (split > 1) ClusterWait();
  const int part = rank * column_groups + column_group;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int row = of_group * 16 + half * 8 + g;
    const int owner = row >> row_bits;
    float* to = sums + part * part_floats + (row - (owner << row_bits)) * kPitch + 4 * t;
    const unsigned there = RemoteAddress(to, owner);
    const unsigned arrival = RemoteAddress(arrivals + kWgmmaMostChunks, owner);
#pragma unroll
    for (int i = 0; i < kTokens / 16; ++i) {
      const float* from = acc + 8 * i + 2 * half;
      const float4 value = make_float4(from[0], from[1], from[4], from[5]);
      if (split > 1) {
        StoreAndTell(there + i * 64, value, arrival);
      } else {
        *reinterpret_cast<float4*>(to + i * 16) = value;
      }
    }
  }
  if (has_norm && g / 2 == t && of_group < kTokens / 16) {
    float* mine = squares + (rank * groups + group) * kTokens + of_group * 16 + 4 * t + g % 2;
#pragma unroll 1
    for (int to = 0; to < split; ++to) {
      const unsigned there = RemoteAddress(mine, to);
      const unsigned arrival = RemoteAddress(arrivals + kWgmmaMostChunks, to);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int at = g % 2;
        const float value = i == 0 ? (at == 0 ? low[0][0] + low[1][0] : low[0][1] + low[1][1])
                                   : (at == 0 ? high[0][2] + high[1][2] : high[0][3] + high[1][3]);
        if (split > 1) {
          StoreAndTell(there + i * 8, value, arrival);
        } else {
          mine[2 * i] = value;
        }
      }
    }
  }
  if (split > 1) {
    WaitArrival(sums_arrival, 0);
  } else {
    __syncthreads();
  }

#pragma unroll 1
  for (int item = thread; item < items; item += threads) {
    const int in_block = item & ((1 << out_bits) - 1);
    const int four = item >> out_bits;
    // Gate rows of a tile come before its up rows.
    const int at = gated ? in_block / 8 * 16 + in_block % 8 : in_block;
    const float* from = sums + at * kPitch + four * 4;
    float y[4] = {};
    float up[4] = {};
#pragma unroll 2
    for (int i = 0; i < parts; ++i) {
      AddFour(y, from);
      if (gated) AddFour(up, from + 8 * kPitch);
      from += part_floats;
    }
    float square[4] = {};
    if (has_norm) {
      from = squares + four * 4;
#pragma unroll 2
      for (int i = 0; i < groups << params.split_bits; ++i) AddFour(square, from + i * kTokens);
    }
    const int row = row_of(item);
    if (row < out_rows) {
      float bias = 0;
      float up_bias = 0;
      if (p.bias != nullptr) {
        bias = p.bias[row];
        if (gated) up_bias = p.bias[out_rows + row];
      }
      const int token = token_of(item);
      float* to = p.output + static_cast<long long>(token) * p.output_stride + row;
      uint16_t* rounded =
          p.rounded_output + static_cast<long long>(token) * p.rounded_output_stride + row;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int after = i % 2 + i / 2 * 8;
        if (has_norm) {
          const float factor = rsqrtf(fmaf(square[i], params.finish.inverse_cols, p.norm_eps));
          y[i] *= factor, up[i] *= factor;
        }
        float value = y[i] + bias;
        if (gated) {
          value = FastSilu(value) * (up[i] + up_bias);
        } else {
          value = fmaf(params.finish.scale, value, old[i]);
        }
        if (token + after < p.tokens) {
          to[after * p.output_stride] = value;
          if (p.rounded_output != nullptr) {
            rounded[after * p.rounded_output_stride] =
                __bfloat16_as_ushort(__float2bfloat16_rn(value));
          }
        }
      }
    }
    load_old(item + threads);
  }
#endif
}

template <WeightFormat F, bool kWide, int kTokens>
void LaunchKernel(const LinearParams& p, const WgmmaGeometry& geometry, cudaStream_t stream) {
  const auto kernel = WgmmaLinearKernel<F, kWide, kTokens>;
  const WgmmaLayout layout(p.matrix, p.norm_weight != nullptr, geometry);
  // Always the same number, so that launches in a graph keep what they need.
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             DeviceSharedBytes()),
        "cudaFuncSetAttribute");
  WgmmaParams params = {MapTokens(p, kTokens), p, geometry, layout, 0, 0, FinishOf(p)};
  while (1 << params.column_bits < geometry.column_groups) ++params.column_bits;
  while (1 << params.split_bits < geometry.split) ++params.split_bits;
  const int tiles = kWgmmaRows / kTileRows * geometry.row_groups;
  const int row_blocks = (p.matrix.tiles + tiles - 1) / tiles;
  LaunchClusters("the matrix kernel of larger batches", kernel,
                 dim3(static_cast<unsigned>(row_blocks * geometry.split),
                      static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens)),
                 dim3(static_cast<unsigned>(128 * geometry.row_groups * geometry.column_groups)),
                 dim3(static_cast<unsigned>(geometry.split)), static_cast<size_t>(layout.total),
                 stream, params);
}

template <WeightFormat F, bool kWide>
void ChooseTokens(const LinearParams& p, const WgmmaGeometry& geometry, cudaStream_t stream) {
  switch (geometry.tokens) {
    case 16:
      return LaunchKernel<F, kWide, 16>(p, geometry, stream);
    case 32:
      return LaunchKernel<F, kWide, 32>(p, geometry, stream);
    default:
      return LaunchKernel<F, kWide, 64>(p, geometry, stream);
  }
}

}  // namespace

bool DeviceHasWgmma() {
  static const bool has = [] {
    int device = 0;
    int major = 0;
    int minor = 0;
    Check(cudaGetDevice(&device), "cudaGetDevice");
    Check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "cudaDeviceGetAttribute");
    Check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
          "cudaDeviceGetAttribute");
    if (major != 9 || minor != 0) return false;
    // The kernel's body is there only for sm_90a, and with it its barriers in shared memory.
    cudaFuncAttributes attributes;
    Check(cudaFuncGetAttributes(&attributes, WgmmaLinearKernel<WeightFormat::kQ4, false, 16>),
          "cudaFuncGetAttributes");
    return attributes.sharedSizeBytes > 0;
  }();
  return has;
}

void LaunchWgmmaLinear(const LinearParams& params, const WgmmaGeometry& geometry,
                       cudaStream_t stream) {
  if (params.matrix.tiles == 0 || params.tokens == 0) return;
  const bool wide = params.matrix.scale_format == ScaleFormat::kWide;
  switch (params.matrix.format) {
    case WeightFormat::kQ4:
      return wide ? ChooseTokens<WeightFormat::kQ4, true>(params, geometry, stream)
                  : ChooseTokens<WeightFormat::kQ4, false>(params, geometry, stream);
    case WeightFormat::kQ8:
      return wide ? ChooseTokens<WeightFormat::kQ8, true>(params, geometry, stream)
                  : ChooseTokens<WeightFormat::kQ8, false>(params, geometry, stream);
    default:
      return ChooseTokens<WeightFormat::kBf16, false>(params, geometry, stream);
  }
}

}  // namespace adder::cuda
