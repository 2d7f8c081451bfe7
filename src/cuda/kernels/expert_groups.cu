// Grouping: one block counts the pairs of each expert in shared memory, lays the experts' rows and
// tiles out one after the other, and scatters the pairs. The order of an expert's rows depends on
// timing; no result does, since rows do not meet.
//
// Products: a block of 4 warps owns eight tiles of a packed matrix, two per warp, and one tile of
// 32, 64 or 128 rows. Phases per chunk of 64 columns: rows and packed weights of the next chunks
// are on their way to shared memory while this chunk's weights are scaled, rounded to bf16 and
// multiplied. Results go through shared memory to be written in whole lines. There gates meet their
// ups, too, and other activations than silu's product, the most common, are made. Blocks beyond the
// number of tiles, which only the device knows, end at once.
#include <algorithm>

#include "cuda/kernels/activate.cuh"
#include "cuda/kernels/bf16_rows.h"
#include "cuda/kernels/expert_groups.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/tensor_core.cuh"
#include "cuda/kernels/weight_format_dispatch.h"

namespace adder::cuda {
namespace {

constexpr int kGroupThreads = 1024;
constexpr int kThreads = 128;
constexpr int kTilesPerWarp = 2;
constexpr int kTilesPerBlock = kTilesPerWarp * kThreads / 32;

__global__ void __launch_bounds__(kThreads)
    ChooseKernel(const float* scores, int scores_stride,
                 const __grid_constant__ ExpertGroups groups) {
  PdlWait();
  PdlTrigger();
  const int token = static_cast<int>(blockIdx.x * (kThreads / 32) + threadIdx.x / 32);
  if (token >= groups.tokens) return;
  float* routing = groups.routing + static_cast<long long>(token) * groups.routing_stride;
  ChooseExperts(scores + static_cast<long long>(token) * scores_stride, groups.experts,
                groups.top_k, routing);
  __syncwarp();
  for (int j = static_cast<int>(threadIdx.x % 32); j < groups.top_k; j += 32) {
    groups.chosen[token * groups.top_k + j] = static_cast<int>(routing[groups.top_k + j]);
  }
}

__global__ void __launch_bounds__(kGroupThreads) GroupKernel(ExpertGroups groups, int tile_rows) {
  __shared__ int counts[kMostGroupedExperts];
  __shared__ int row_sums[kMostGroupedExperts];
  __shared__ int tile_sums[kMostGroupedExperts];
  PdlWait();
  PdlTrigger();
  const int thread = static_cast<int>(threadIdx.x);
  const int pairs = groups.tokens * groups.top_k;
  // Calls with this thread's pairs and their experts, several of which are loaded at once.
  const auto for_each = [&](auto&& visit) {
    constexpr int kAtOnce = 8;
    for (int base = thread; base < pairs; base += kAtOnce * kGroupThreads) {
      int experts[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int pair = base + i * kGroupThreads;
        experts[i] = pair < pairs ? groups.chosen[pair] : -1;
      }
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (experts[i] >= 0) visit(base + i * kGroupThreads, experts[i]);
      }
    }
  };
  counts[thread] = 0;
  __syncthreads();
  for_each([&](int, int expert) { atomicAdd(&counts[expert], 1); });
  __syncthreads();
  // Inclusive sums over experts, doubling.
  const int mine = counts[thread];
  const int my_tiles = (mine + tile_rows - 1) / tile_rows;
  row_sums[thread] = mine;
  tile_sums[thread] = my_tiles;
  __syncthreads();
  for (int offset = 1; offset < groups.experts; offset *= 2) {
    const int rows = thread >= offset ? row_sums[thread - offset] : 0;
    const int tiles = thread >= offset ? tile_sums[thread - offset] : 0;
    __syncthreads();
    row_sums[thread] += rows;
    tile_sums[thread] += tiles;
    __syncthreads();
  }
  if (thread < groups.experts) {
    const int first_row = row_sums[thread] - mine;
    const int first_tile = tile_sums[thread] - my_tiles;
    for (int i = 0; i < my_tiles; ++i) {
      groups.tiles[first_tile + i] = {thread, first_row + i * tile_rows,
                                      min(tile_rows, mine - i * tile_rows), 0};
    }
    if (thread + 1 == groups.experts) *groups.tile_count = tile_sums[thread];
    counts[thread] = first_row;
  }
  __syncthreads();
  for_each([&](int pair, int expert) { groups.order[atomicAdd(&counts[expert], 1)] = pair; });
}

// Rows of activations in shared memory: 64 columns, units of eight; odd rows have their halves
// exchanged so that a quarter of a warp, which reads four units of two rows, meets every bank once.
__device__ __forceinline__ int RowUnit(int row, int unit) {
  return row * kChunkCols * 2 + (unit ^ (row & 1) << 2) * 16;
}

// A stage of shared memory: the rows' chunk, then each tile's weights, then each tile's scales.
template <WeightFormat F, bool kWide, int kRows>
struct StageLayout {
  static constexpr int kTileBytes = LoadsOf(F) * 32 * 16;
  static constexpr int kScaleBytes =
      !Fragment<F>::kQuantized
          ? 0
          : ScaleBytesPerChunk(kWide ? ScaleFormat::kWide : ScaleFormat::kCompactBf16);
  static constexpr int kWeights = kRows * kChunkCols * 2;
  static constexpr int kScales = kWeights + kTilesPerBlock * kTileBytes;
  static constexpr int kBytes = kScales + kTilesPerBlock * kScaleBytes;
  // As many as the smallest devices have shared memory for.
  static constexpr int kCount = kBytes <= 25088 ? 4 : kBytes <= 33280 ? 3 : 2;
  static_assert(kCount * kBytes <= 99 * 1024);
};

// Scales of rows g and g + 8 from a stage: see packed_matrix.h.
template <bool kWide>
__device__ __forceinline__ void ReadScales(ScalePairs<kWide>& pairs, const unsigned char* scales,
                                           int g) {
  if constexpr (kWide) {
    const uint2* of_rows = reinterpret_cast<const uint2*>(scales);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const uint2 pair = of_rows[h * kTileRows + g + 8 * r];
        pairs.words[4 * h + 2 * r] = pair.x;
        pairs.words[4 * h + 2 * r + 1] = pair.y;
      }
    }
  } else {
    const unsigned* of_rows = reinterpret_cast<const unsigned*>(scales);
    pairs.words[0] = of_rows[g];
    pairs.words[1] = of_rows[g + 8];
  }
}

__device__ __forceinline__ unsigned Twice(float x) { return PackBf16(x, x); }

// Weights of a tile and chunk as bf16 operands.
template <WeightFormat F, bool kWide>
__device__ __forceinline__ void ExpandScaled(const uint4 (&raw)[LoadsOf(F)],
                                             const ScalePairs<kWide>& pairs, ScaleFormat format,
                                             unsigned (&a)[4][4]) {
  Fragment<F>::template Expand<true>(raw, 0, a);
  if constexpr (Fragment<F>::kQuantized) {
#pragma unroll
    for (int h = 0; h < (kWide ? 2 : 1); ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 pair = pairs.Get(h, r, format);
        const unsigned scale = Twice(pair.x);
        const unsigned bias = Twice(pair.y);
#pragma unroll
        for (int j = kWide ? 2 * h : 0; j < (kWide ? 2 * h + 2 : 4); ++j) {
#pragma unroll
          for (int q = 0; q < 2; ++q) {
            asm("fma.rn.bf16x2 %0, %0, %1, %2;" : "+r"(a[j][2 * q + r]) : "r"(scale), "r"(bias));
          }
        }
      }
    }
  }
}

// What becomes of a block's results on their way out.
struct ResultRule {
  bool of_tokens = false;  // the input has a row per token, not per pair
  bool activates = false;
  bool gated = false;  // gate and up are in the halves of a tile
  Activation activation = Activation::kSilu;
};

// Eight activated results, from as many of shared memory, or with gates from sixteen.
__device__ __forceinline__ uint4 ActivateUnit(const ResultRule& rule, const __nv_bfloat16* from) {
  __align__(16) __nv_bfloat16 out[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float y = Activate(rule.activation, __bfloat162float(from[i]));
    if (rule.gated) y *= __bfloat162float(from[8 + i]);
    out[i] = __float2bfloat16_rn(y);
  }
  return *reinterpret_cast<const uint4*>(out);
}

// Blocks per multiprocessor that registers are kept for.
constexpr int BlocksOf(int rows) { return rows == 128 ? 2 : rows == 64 ? 3 : 5; }

// kSiluGated: results are silu(gate) * up, and the rule is not looked at.
template <WeightFormat F, bool kWide, bool kSiluGated, int kRows>
__global__ void __launch_bounds__(kThreads, BlocksOf(kRows))
    GroupedKernel(const __grid_constant__ ExpertGroups groups,
                  const __grid_constant__ PackedMatrix m, const ResultRule rule,
                  const __nv_bfloat16* input, __nv_bfloat16* output) {
  constexpr int kLoads = LoadsOf(F);
  constexpr int kRowTiles = kRows / 8;
  using Stage = StageLayout<F, kWide, kRows>;
  constexpr int kStages = Stage::kCount;
  // Columns of the block's results in shared memory.
  constexpr int kResults = kTilesPerBlock * (kSiluGated ? kTileRows / 2 : kTileRows);
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ int pair_of_row[kRows];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  PdlWait();
  PdlTrigger();
  if (static_cast<int>(blockIdx.y) >= *groups.tile_count) return;
  const ExpertTile tile = groups.tiles[blockIdx.y];
  const int row = static_cast<int>(threadIdx.x);
  static_assert(kRows <= kThreads);
  if (row < tile.rows) pair_of_row[row] = groups.order[tile.first + row];
  __syncthreads();

  // This thread copies one unit of every chunk for rows kThreads / kUnits apart.
  constexpr int kUnits = kChunkCols / 8;
  constexpr int kCopies = kRows * kUnits / kThreads;
  const int stride = Bf16Stride(m.cols);
  const unsigned stages = SharedAddress(shared);
  const int first_row = static_cast<int>(threadIdx.x) / kUnits;
  const int unit = static_cast<int>(threadIdx.x) % kUnits;
  int sources[kCopies];
#pragma unroll
  for (int i = 0; i < kCopies; ++i) {
    const int r = first_row + i * (kThreads / kUnits);
    sources[i] = -1;
    if (r >= tile.rows) continue;
    sources[i] = kSiluGated || rule.of_tokens ? pair_of_row[r] / groups.top_k : pair_of_row[r];
  }
  // Each warp copies the weights of its own tiles.
  const int first_tile = static_cast<int>(blockIdx.x) * kTilesPerBlock + warp * kTilesPerWarp;
  const uint4* data = m.data + tile.expert * m.data_stride + lane;
  const unsigned char* scales =
      static_cast<const unsigned char*>(m.scales) + tile.expert * m.scales_stride;
  const auto copy = [&](int chunk) {
    const unsigned stage = stages + chunk % kStages * Stage::kBytes;
    const int col = chunk * kChunkCols + unit * 8;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const bool valid = sources[i] >= 0 && col < stride;
      const __nv_bfloat16* from =
          valid ? input + static_cast<long long>(sources[i]) * stride + col : input;
      CopyAsync(stage + RowUnit(first_row + i * (kThreads / kUnits), unit), from, valid);
    }
#pragma unroll
    for (int w = 0; w < kTilesPerWarp; ++w) {
      if (first_tile + w >= m.tiles) continue;
      const int in_block = warp * kTilesPerWarp + w;
      const long long place = static_cast<long long>(first_tile + w) * m.chunks + chunk;
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        CopyAsync(stage + Stage::kWeights + in_block * Stage::kTileBytes + (i * 32 + lane) * 16,
                  data + (place * kLoads + i) * 32, true);
      }
      if (lane < Stage::kScaleBytes / 16) {
        CopyAsync(stage + Stage::kScales + in_block * Stage::kScaleBytes + lane * 16,
                  scales + place * Stage::kScaleBytes + lane * 16, true);
      }
    }
  };

#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage) {
    if (stage < m.chunks) copy(stage);
    CopyCommit();
  }
  float acc[kTilesPerWarp][kRowTiles][4] = {};
#pragma unroll 1
  for (int chunk = 0; chunk < m.chunks; ++chunk) {
    CopyWait<kStages - 2>();
    __syncthreads();
    if (chunk + kStages - 1 < m.chunks) copy(chunk + kStages - 1);
    CopyCommit();
    const unsigned char* stage = shared + chunk % kStages * Stage::kBytes;
    unsigned a[kTilesPerWarp][4][4];
#pragma unroll
    for (int w = 0; w < kTilesPerWarp; ++w) {
      const int in_block = warp * kTilesPerWarp + w;
      const uint4* weights =
          reinterpret_cast<const uint4*>(stage + Stage::kWeights + in_block * Stage::kTileBytes);
      uint4 raw[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) raw[i] = weights[i * 32 + lane];
      ScalePairs<kWide> pairs;
      if constexpr (Fragment<F>::kQuantized) {
        ReadScales<kWide>(pairs, stage + Stage::kScales + in_block * Stage::kScaleBytes, g);
      }
      ExpandScaled<F, kWide>(raw, pairs, m.scale_format, a[w]);
    }
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4 eight = *reinterpret_cast<const uint4*>(stage + RowUnit(n * 8 + g, 4 * h + t));
        const unsigned low[2] = {eight.x, eight.y};
        const unsigned high[2] = {eight.z, eight.w};
#pragma unroll
        for (int w = 0; w < kTilesPerWarp; ++w) {
          Mma(acc[w][n], a[w][2 * h], low);
          Mma(acc[w][n], a[w][2 * h + 1], high);
        }
      }
    }
  }

  // Results [kRows][kResults] with a unit of padding per row, over the stages.
  constexpr int kResultStride = kResults + 8;
  static_assert(kRows * kResultStride * 2 <= kStages * Stage::kBytes);
  __nv_bfloat16* results = reinterpret_cast<__nv_bfloat16*>(shared);
  CopyWait<0>();
  __syncthreads();
#pragma unroll
  for (int w = 0; w < kTilesPerWarp; ++w) {
#pragma unroll
    for (int n = 0; n < kRowTiles; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        __nv_bfloat16* to = results + (n * 8 + 2 * t + c) * kResultStride;
        const float low = acc[w][n][c];
        const float high = acc[w][n][2 + c];
        const int of_block = warp * kTilesPerWarp + w;
        if constexpr (kSiluGated) {
          to[of_block * 8 + g] = __float2bfloat16_rn(__fdividef(low, 1.0f + __expf(-low)) * high);
        } else {
          to[of_block * kTileRows + g] = __float2bfloat16_rn(low);
          to[of_block * kTileRows + g + 8] = __float2bfloat16_rn(high);
        }
      }
    }
  }
  __syncthreads();
  const bool pairs_meet = !kSiluGated && rule.gated;
  const int width = kSiluGated || pairs_meet ? m.rows / 2 : m.rows;
  const int out_stride = Bf16Stride(width);
  // Units are of eight columns of the output, 2^bits in a row.
  static_assert(kResults == (kSiluGated ? 64 : 128));
  const int bits = kSiluGated || pairs_meet ? 3 : 4;
  for (int i = threadIdx.x; i < tile.rows << bits; i += kThreads) {
    const int r = i >> bits;
    const int unit = i & ((1 << bits) - 1);
    const int col = ((static_cast<int>(blockIdx.x) << bits) + unit) * 8;
    if (col >= width) continue;
    const __nv_bfloat16* from = results + r * kResultStride + unit * (pairs_meet ? 16 : 8);
    uint4 words = !kSiluGated && rule.activates ? ActivateUnit(rule, from)
                                                : *reinterpret_cast<const uint4*>(from);
    if (col + 8 > width) {
      __nv_bfloat16* values = reinterpret_cast<__nv_bfloat16*>(&words);
      for (int k = width - col; k < 8; ++k) values[k] = __float2bfloat16_rn(0.0f);
    }
    *reinterpret_cast<uint4*>(output + static_cast<long long>(pair_of_row[r]) * out_stride + col) =
        words;
  }
}

// A thread owns eight values of a token.
__global__ void __launch_bounds__(kThreads)
    CombineKernel(const __grid_constant__ ExpertGroups groups, const __nv_bfloat16* rows,
                  float scale, int width, bool adds, float* output, int stride) {
  PdlWait();
  PdlTrigger();
  const int token = static_cast<int>(blockIdx.y);
  const int col = 8 * static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (col >= width) return;
  const float* weights = groups.routing + static_cast<long long>(token) * groups.routing_stride;
  const int row_stride = Bf16Stride(width);
  float sum[8] = {};
#pragma unroll 4
  for (int j = 0; j < groups.top_k; ++j) {
    const long long pair = static_cast<long long>(token) * groups.top_k + j;
    const float weight = weights[j];
    uint4 words = make_uint4(0, 0, 0, 0);
    // Idle choices have no row.
    if (weight != 0) words = *reinterpret_cast<const uint4*>(rows + pair * row_stride + col);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const unsigned both = Component(words, i);
      sum[2 * i] = fmaf(weight, __uint_as_float(both << 16), sum[2 * i]);
      sum[2 * i + 1] = fmaf(weight, __uint_as_float(both & 0xffff0000u), sum[2 * i + 1]);
    }
  }
  float* out = output + static_cast<long long>(token) * stride + col;
  if (col + 8 <= width) {
    float4* four = reinterpret_cast<float4*>(out);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      float4 v = adds ? four[i] : make_float4(0, 0, 0, 0);
      v.x = fmaf(scale, sum[4 * i], v.x), v.y = fmaf(scale, sum[4 * i + 1], v.y);
      v.z = fmaf(scale, sum[4 * i + 2], v.z), v.w = fmaf(scale, sum[4 * i + 3], v.w);
      four[i] = v;
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (col + i < width) out[i] = fmaf(scale, sum[i], adds ? out[i] : 0.0f);
  }
}

template <bool kSiluGated>
void LaunchGrouped(const ExpertGroups& groups, const PackedMatrix& m, const ResultRule& rule,
                   const __nv_bfloat16* input, __nv_bfloat16* output, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((m.tiles + kTilesPerBlock - 1) / kTilesPerBlock),
                  static_cast<unsigned>(MostExpertTiles(groups.pairs(), groups.experts)));
  const auto launch = [&]<WeightFormat kFormat, bool kWide>() {
    const auto with_rows = [&]<int kRows>() {
      const auto kernel = GroupedKernel<kFormat, kWide, kSiluGated, kRows>;
      using Stage = StageLayout<kFormat, kWide, kRows>;
      constexpr size_t kShared = size_t{Stage::kCount} * Stage::kBytes;
      AllowSharedMemory(kernel, kShared);
      Launch("the kernel of grouped experts", kernel, grid, dim3(kThreads), kShared, stream, groups,
             m, rule, input, output);
    };
    switch (ExpertTileRows(groups.pairs(), groups.experts)) {
      case 32:
        return with_rows.template operator()<32>();
      case 64:
        return with_rows.template operator()<64>();
      default:
        return with_rows.template operator()<128>();
    }
  };
  WithWeightFormat(m, launch);
}

}  // namespace

void LaunchChooseExperts(const float* scores, int scores_stride, const ExpertGroups& groups,
                         cudaStream_t stream) {
  constexpr int kWarps = kThreads / 32;
  Launch("the kernel that chooses experts", ChooseKernel,
         dim3(static_cast<unsigned>((groups.tokens + kWarps - 1) / kWarps)), dim3(kThreads), 0,
         stream, scores, scores_stride, groups);
}

void LaunchGroupExperts(const ExpertGroups& groups, cudaStream_t stream) {
  Launch("the kernel that groups experts", GroupKernel, dim3(1), dim3(kGroupThreads), 0, stream,
         groups, ExpertTileRows(groups.pairs(), groups.experts));
}

void LaunchGroupedGateUp(const ExpertGroups& groups, const PackedMatrix& stack,
                         Activation activation, const __nv_bfloat16* input, __nv_bfloat16* output,
                         cudaStream_t stream) {
  const ResultRule rule = {true, true, stack.interleaved, activation};
  if (stack.interleaved && activation == Activation::kSilu) {
    LaunchGrouped<true>(groups, stack, rule, input, output, stream);
  } else {
    LaunchGrouped<false>(groups, stack, rule, input, output, stream);
  }
}

void LaunchGroupedDown(const ExpertGroups& groups, const PackedMatrix& stack,
                       const __nv_bfloat16* input, __nv_bfloat16* output, cudaStream_t stream) {
  LaunchGrouped<false>(groups, stack, {}, input, output, stream);
}

void LaunchCombineExperts(const ExpertGroups& groups, const __nv_bfloat16* rows, float scale,
                          int width, bool adds, float* output, int stride, cudaStream_t stream) {
  const int blocks = ((width + 7) / 8 + kThreads - 1) / kThreads;
  Launch("the kernel that adds experts up", CombineKernel,
         dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(groups.tokens)), dim3(kThreads),
         0, stream, groups, rows, scale, width, adds, output, stride);
}

}  // namespace adder::cuda
