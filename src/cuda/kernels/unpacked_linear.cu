// The matrix kernel of larger batches on GPUs of compute capability 9.0: products of warpgroups of
// bf16 activations and weights unpacked to bf16, times those of the norm.
//
// Ownership: a block owns 64 rows, kTokens tokens and its rank's part of the columns; blocks of a
// cluster share the columns (split). A block of a matrix of many rows may take several times 64
// rows, one after the other. Its last warp fills a ring of stages with weights and tokens:
// a chunk of columns for each warpgroup, which multiplies its 64 rows by all of the tokens.
//
// Phases: (1) copies of the first stages' weights begin; (2) PdlWait of the copying warp, then
// tokens are copied; (3) products, each of which frees the stage before; meanwhile a norm's sums of
// squares are made of the tokens; (4) the warpgroups' sums meet in shared memory, of a split
// cluster those of its blocks, and get the norm's factor, which needs the whole row, the bias and
// the epilogue.
//
// Barriers: of each stage, when it is filled, and when all who read it are done; of all warpgroups,
// around the sums; of a split cluster, around the exchange of sums, and before leaving.
#include <cuda.h>

#include <algorithm>

#include "cuda/kernels/batch_products.cuh"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/tensor_core.cuh"
#include "cuda/kernels/token_map.h"
#include "cuda/kernels/unpacked_linear.h"
#include "cuda/kernels/wgmma.cuh"

namespace adder::cuda {
namespace {

struct UnpackedParams {
  CUtensorMap tokens;  // of the rounded input
  LinearParams linear;
  UnpackedGeometry geometry;
  UnpackedLayout layout;
  FinishParams finish;
  const uint16_t* weights;  // in tiles
  int split_bits;           // log2 of geometry.split
  int row_blocks;
};

constexpr int kTileBytes = kUnpackedRows * kChunkCols * 2;
constexpr int kTiles = kUnpackedRows / kTileRows;
// Blocks that share a multiprocessor, as registers allow.
constexpr int MostBlocks(int tokens, int groups) { return tokens <= 64 && groups == 2 ? 2 : 1; }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Floats from one token's sums to the next: neighbours' rows lie in different banks.
constexpr int kPitch = kUnpackedRows + 4;

// Of `threads` threads, number `barrier` of the block's.
__device__ __forceinline__ void PartBarrier(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// Where the ring is.
struct Place {
  int slot = 0;
  int phase = 0;
  __device__ __forceinline__ void Advance(int stages) {
    if (++slot == stages) slot = 0, phase ^= 1;
  }
};

__device__ __forceinline__ void AddFour(float4* sums, const float* from) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  sums->x += v.x, sums->y += v.y, sums->z += v.z, sums->w += v.w;
}

#endif

template <int kTokens, int kGroups>
__global__ void __launch_bounds__(128 * kGroups + 32, MostBlocks(kTokens, kGroups))
    UnpackedLinearKernel(const __grid_constant__ UnpackedParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kConsumers = 128 * kGroups;
  constexpr int kChunkBytes = kTokens * kChunkCols * 2;
  const LinearParams& p = params.linear;
  const PackedMatrix& m = p.matrix;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const int stages = params.geometry.stages;
  const int split = 1 << params.split_bits;
  const int rank = static_cast<int>(blockIdx.x) & (split - 1);
  const int first_token = static_cast<int>(blockIdx.y) * kTokens;
  const int first_chunk = m.chunks * rank >> params.split_bits;
  const int chunks = (m.chunks * (rank + 1) >> params.split_bits) - first_chunk;
  const int steps = (chunks + kGroups - 1) / kGroups;
  const bool has_norm = p.norm_weight != nullptr;
  extern __shared__ __align__(1024) char bytes[];
  const unsigned shared = SharedAddress(bytes);
  __shared__ uint64_t stage_filled[kMostUnpackedStages];
  __shared__ uint64_t stage_free[kMostUnpackedStages];
  float* squares = reinterpret_cast<float*>(bytes + params.layout.squares);  // [warpgroup][token]

  if (threadIdx.x < stages) {
    InitArrival(SharedAddress(stage_filled + threadIdx.x));
    InitArrival(SharedAddress(stage_free + threadIdx.x), 4 * kGroups);
  }
  FenceArrivals();
  __syncthreads();
  const int first_block = static_cast<int>(blockIdx.x) >> params.split_bits;
  const int block_step = static_cast<int>(gridDim.x) >> params.split_bits;

  if (warp == kConsumers / 32) {
    const char* const data = reinterpret_cast<const char*>(params.weights);
    const auto copy_weights = [&](int row_block, int step, int slot) {
      const int count = min(kGroups, chunks - step * kGroups);
      const unsigned barrier = SharedAddress(stage_filled + slot);
      ExpectBytes(barrier, count * (kTileBytes + kChunkBytes));
      const long long tile =
          static_cast<long long>(row_block) * m.chunks + first_chunk + step * kGroups;
      CopyBytes(shared + params.layout.weights + slot * (kGroups * kTileBytes),
                data + tile * kTileBytes, count * kTileBytes, barrier);
    };
    const auto copy_tokens = [&](int step, int slot) {
      const int count = min(kGroups, chunks - step * kGroups);
      const unsigned barrier = SharedAddress(stage_filled + slot);
      for (int i = 0; i < count; ++i) {
        CopyBox(shared + (slot * kGroups + i) * kChunkBytes, &params.tokens,
                (first_chunk + step * kGroups + i) * kChunkCols, first_token, barrier);
      }
    };
    const int ahead = min(stages, steps);
    if (lane == 0) {
      PrefetchMap(&params.tokens);
#pragma unroll 1
      for (int step = 0; step < ahead; ++step) copy_weights(first_block, step, step);
    }
    PdlWait();
    PdlTrigger();
    if (lane == 0) {
#pragma unroll 1
      for (int step = 0; step < ahead; ++step) copy_tokens(step, step);
      Place place;
      int used = 0;
#pragma unroll 1
      for (int row_block = first_block; row_block < params.row_blocks; row_block += block_step) {
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
          if (used >= ahead) {
            if (used >= stages)
              WaitArrival(SharedAddress(stage_free + place.slot), place.phase ^ 1);
            copy_weights(row_block, step, place.slot);
            copy_tokens(step, place.slot);
          }
          ++used;
          place.Advance(stages);
        }
      }
    }
  } else {
    const int g = lane / 4;
    const int t = lane % 4;
    const int group = warp / 4;
    const int of_group = warp % 4;
    constexpr int kSquareTiles = kTokens <= 64 ? 1 : kTokens / 64;
    const bool gated = p.matrix.interleaved;
    const Outputs outputs(p);
    float* sums = reinterpret_cast<float*>(bytes + params.layout.sums);
    const auto free_stage = [&](int slot) {
      if (lane == 0) Arrive(SharedAddress(stage_free + slot));
    };
    Place place;
#pragma unroll 1
    for (int row_block = first_block; row_block < params.row_blocks; row_block += block_step) {
      float acc[kTokens / 2];
      float low[kSquareTiles][4] = {};
      float high[kSquareTiles][4] = {};
      const bool makes_squares = has_norm && row_block == first_block;
      int before = -1;  // the slot that products under way read
#pragma unroll 1
      for (int step = 0; step < steps; ++step, place.Advance(stages)) {
        const int chunk = step * kGroups + group;
        if (chunk >= chunks) {
          free_stage(place.slot);
          continue;
        }
        if (row_block == first_block && step == 0) PdlWait();
        WaitArrival(SharedAddress(stage_filled + place.slot), place.phase);
        const unsigned tokens = shared + (place.slot * kGroups + group) * kChunkBytes;
        const uint64_t tokens_operand = OperandInShared(tokens);
        const uint64_t weights_operand = OperandInShared(
            shared + params.layout.weights + (place.slot * kGroups + group) * kTileBytes);
        FenceRegisters();
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          // Addresses in operands are in units of 16 bytes.
          MultiplyGroup<kTokens>(acc, weights_operand + 2 * j, tokens_operand + 2 * j, step | j);
        }
        CommitProducts();
        if (makes_squares) {
#pragma unroll
          for (int i = 0; i < kSquareTiles; ++i) {
            const int tile = of_group + 4 * i;
            if (tile >= kTokens / 16) break;
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              // The diagonal of a tile times itself: of its first eight tokens in `low`, of the
              // others in rows 8 to 15 of `high`.
              unsigned x[4];
              LoadA<kChunkCols>(x, tokens, tile * 16, 2 * j, lane);
              FreeMma(low[i], x, x[0], x[2]);
              FreeMma(high[i], x, x[1], x[3]);
            }
          }
        }
        WaitProducts<1>();
        if (before >= 0) free_stage(before);
        before = place.slot;
      }
      WaitProducts<0>();
      if (before >= 0) free_stage(before);
      // The sums may lie where tokens were.
      PartBarrier(8, kConsumers);
      // Of a pair of warpgroups each adds up half of the tokens, and gives the other its sums of
      // the rest.
      float* mine = sums + group / 2 * (kTokens * kPitch) + 2 * t * kPitch + of_group * 16 + g;
      const auto at = [&](int i) { return mine + (i / 4 * 8 + i % 2) * kPitch + i / 2 % 2 * 8; };
      if (group % 2 == 0) {
#pragma unroll
        for (int i = kTokens / 4; i < kTokens / 2; ++i) *at(i) = acc[i];
      } else {
#pragma unroll
        for (int i = 0; i < kTokens / 4; ++i) *at(i) = acc[i];
      }
      if (makes_squares && g / 2 == t) {
#pragma unroll
        for (int i = 0; i < kSquareTiles; ++i) {
          const int tile = of_group + 4 * i;
          if (tile >= kTokens / 16) break;
          squares[group * kTokens + tile * 16 + g] = g % 2 == 0 ? low[i][0] : low[i][1];
          squares[group * kTokens + tile * 16 + 8 + g] = g % 2 == 0 ? high[i][2] : high[i][3];
        }
      }
      PartBarrier(8, kConsumers);
      if (group % 2 == 0) {
#pragma unroll
        for (int i = 0; i < kTokens / 4; ++i) *at(i) += acc[i];
      } else {
#pragma unroll
        for (int i = kTokens / 4; i < kTokens / 2; ++i) *at(i) += acc[i];
      }
      if (split > 1) {
        ClusterArrive();
        ClusterWait();
      } else {
        PartBarrier(8, kConsumers);
      }

      // An item is four outputs of a token: of gated projections there are half as many as rows.
      const int quad_bits = gated ? 3 : 4;
      const int own_tokens = kTokens >> params.split_bits;
      const int items = own_tokens << quad_bits;
      const int first_row = row_block * (kUnpackedRows >> gated);
      const auto row_of = [&](int item) { return first_row + (item & ((1 << quad_bits) - 1)) * 4; };
      const auto load_old = [&](int item) {
        const int token = first_token + rank * own_tokens + (item >> quad_bits);
        const bool adds =
            Adds(p) && item < items && token < p.tokens && row_of(item) < outputs.rows;
        return adds ? outputs.Load(token, row_of(item)) : make_float4(0, 0, 0, 0);
      };
      float4 old = load_old(threadIdx.x);
#pragma unroll 1
      for (int item = threadIdx.x; item < items; item += kConsumers) {
        const float4 next_old = load_old(item + kConsumers);
        const int in_block = rank * own_tokens + (item >> quad_bits);
        const int quad = item & ((1 << quad_bits) - 1);
        const int token = first_token + in_block;
        if (token < p.tokens && row_of(item) < outputs.rows) {
          // Gate rows of a tile come before its up rows.
          const float* from =
              sums + in_block * kPitch + (gated ? quad / 2 * 16 + quad % 2 * 4 : quad * 4);
          float4 y = make_float4(0, 0, 0, 0);
          float4 up = make_float4(0, 0, 0, 0);
          float squared = 0;
#pragma unroll 1
          for (int r = 0; r < split; ++r) {
            const float* of_rank = split > 1 ? AtRank(from, r) : from;
#pragma unroll
            for (int pair = 0; pair < kGroups / 2; ++pair) {
              AddFour(&y, of_rank + pair * (kTokens * kPitch));
              if (gated) AddFour(&up, of_rank + pair * (kTokens * kPitch) + 8);
            }
            if (has_norm) {
              const float* of_token = squares + in_block;
              if (split > 1) of_token = AtRank(of_token, r);
#pragma unroll
              for (int w = 0; w < kGroups; ++w) squared += of_token[w * kTokens];
            }
          }
          FinishFour(p, outputs, params.finish, token, row_of(item), squared, y, up, old);
        }
        old = next_old;
      }
      if (row_block + block_step < params.row_blocks) PartBarrier(8, kConsumers);
    }
  }
  __syncwarp();
  if (split > 1) {
    // The copying warp was not at the barrier before the exchange.
    if (warp == kConsumers / 32) {
      ClusterArrive();
      ClusterWait();
    }
    ClusterArrive();
    ClusterWait();
  }
#endif
}

template <int kTokens, int kGroups>
void LaunchKernel(const LinearParams& p, const uint16_t* weights, const UnpackedGeometry& geometry,
                  cudaStream_t stream) {
  const auto kernel = UnpackedLinearKernel<kTokens, kGroups>;
  const UnpackedLayout layout(p.norm_weight != nullptr, geometry);
  // Always the same number, so that launches in a graph keep what they need.
  Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             DeviceSharedBytes()),
        "cudaFuncSetAttribute");
  UnpackedParams params = {MapTokens(p, kTokens), p, geometry, layout, FinishOf(p), weights, 0, 0};
  while (1 << params.split_bits < geometry.split) ++params.split_bits;
  params.row_blocks = (p.matrix.tiles + kTiles - 1) / kTiles;
  const int blocks =
      geometry.blocks > 0 ? std::min(params.row_blocks, geometry.blocks) : params.row_blocks;
  LaunchClusters("the matrix kernel of unpacked weights", kernel,
                 dim3(static_cast<unsigned>(blocks * geometry.split),
                      static_cast<unsigned>((p.tokens + kTokens - 1) / kTokens)),
                 dim3(128 * kGroups + 32), dim3(static_cast<unsigned>(geometry.split)),
                 static_cast<size_t>(layout.total), stream, params);
}

// Each warp writes a tile and chunk.
template <WeightFormat F, bool kWide>
__global__ void __launch_bounds__(128) UnpackKernel(const __grid_constant__ PackedMatrix m,
                                                    const float* norm_weight, uint16_t* unpacked) {
  constexpr int kDataBytes = LoadsOf(F) * 512;
  constexpr int kScaleBytes = !Fragment<F>::kQuantized ? 0 : kWide ? 256 : 64;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int g = lane / 4;
  const int t = lane % 4;
  const int chunk = blockIdx.x;
  const int tile = static_cast<int>(blockIdx.y) * kTiles + warp;
  unsigned a[4][4] = {};
  if (tile < m.tiles) {
    uint4 norm[2] = {};
    if (norm_weight != nullptr) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int col = chunk * kChunkCols + 32 * h + 8 * t;
        unsigned words[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float2 pair = make_float2(0, 0);
          if (col + 2 * i < m.cols) {
            pair = *reinterpret_cast<const float2*>(norm_weight + col + 2 * i);
          }
          words[i] = PackBf16(pair.x, pair.y);
        }
        norm[h] = make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
    const long long place = static_cast<long long>(tile) * m.chunks + chunk;
    WeightsAsBf16<F, kWide>(reinterpret_cast<const char*>(m.data) + place * kDataBytes,
                            static_cast<const char*>(m.scales) + place * kScaleBytes,
                            m.scale_format, norm_weight != nullptr, norm, a);
  }
  char* to = reinterpret_cast<char*>(unpacked) +
             (static_cast<long long>(blockIdx.y) * m.chunks + chunk) * kTileBytes;
  // A lane's runs of eight columns are the pieces of a row.
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      *reinterpret_cast<uint4*>(to + UnitOffset<kChunkCols>(warp * 16 + g + 8 * r, 4 * h + t)) =
          make_uint4(a[2 * h][r], a[2 * h][2 + r], a[2 * h + 1][r], a[2 * h + 1][2 + r]);
    }
  }
}

template <WeightFormat F, bool kWide>
void LaunchTilesOf(const PackedMatrix& m, const float* norm_weight, uint16_t* unpacked,
                   cudaStream_t stream) {
  UnpackKernel<F, kWide><<<dim3(static_cast<unsigned>(m.chunks),
                                static_cast<unsigned>((m.tiles + kTiles - 1) / kTiles)),
                           128, 0, stream>>>(m, norm_weight, unpacked);
  Check(cudaGetLastError(), "the unpacking kernel");
}

}  // namespace

void LaunchUnpackTiles(const PackedMatrix& matrix, const float* norm_weight, uint16_t* unpacked,
                       cudaStream_t stream) {
  if (matrix.tiles == 0) return;
  const bool wide = matrix.scale_format == ScaleFormat::kWide;
  switch (matrix.format) {
    case WeightFormat::kQ4:
      return wide ? LaunchTilesOf<WeightFormat::kQ4, true>(matrix, norm_weight, unpacked, stream)
                  : LaunchTilesOf<WeightFormat::kQ4, false>(matrix, norm_weight, unpacked, stream);
    case WeightFormat::kQ8:
      return wide ? LaunchTilesOf<WeightFormat::kQ8, true>(matrix, norm_weight, unpacked, stream)
                  : LaunchTilesOf<WeightFormat::kQ8, false>(matrix, norm_weight, unpacked, stream);
    default:
      return LaunchTilesOf<WeightFormat::kBf16, false>(matrix, norm_weight, unpacked, stream);
  }
}

void LaunchUnpackedLinear(const LinearParams& params, const uint16_t* unpacked,
                          const UnpackedGeometry& geometry, cudaStream_t stream) {
  if (params.matrix.tiles == 0 || params.tokens == 0) return;
  const bool four = geometry.groups == 4;
  switch (geometry.tokens) {
    case 16:
      return four ? LaunchKernel<16, 4>(params, unpacked, geometry, stream)
                  : LaunchKernel<16, 2>(params, unpacked, geometry, stream);
    case 32:
      return four ? LaunchKernel<32, 4>(params, unpacked, geometry, stream)
                  : LaunchKernel<32, 2>(params, unpacked, geometry, stream);
    case 64:
      return four ? LaunchKernel<64, 4>(params, unpacked, geometry, stream)
                  : LaunchKernel<64, 2>(params, unpacked, geometry, stream);
    default:
      return LaunchKernel<128, 2>(params, unpacked, geometry, stream);
  }
}

}  // namespace adder::cuda
