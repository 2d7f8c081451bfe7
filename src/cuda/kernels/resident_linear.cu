// The matrix kernel of heads: products of warpgroups of the activations of up to 128 tokens, which
// stay in shared memory, and of weights unpacked to bf16, times those of the norm.
//
// Ownership: blockIdx.x owns 64 rows of every gridDim.x * 64; each of its two warpgroups multiplies
// them by half of the tokens. Its last warp copies: the tokens once, and weights through a ring of
// stages, each of 64 rows and a chunk of columns.
//
// Phases: (1) copies of the first stages begin; (2) PdlWait of the copying warp, then the tokens
// are copied; (3) products, each of which frees the stage before; with those of the first rows, a
// norm's sums of squares are made of the tokens; (4) the norm's factor, bias, scale, and stores
// from registers: lanes of a token write 32 bytes together.
//
// Barriers: of each chunk of tokens and of each stage, when it is there; of each stage, when both
// warpgroups are done with it; of a warpgroup, around its squares.
#include <algorithm>

#include "cuda/kernels/batch_products.cuh"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/resident_linear.h"
#include "cuda/kernels/tensor_core.cuh"
#include "cuda/kernels/token_map.h"
#include "cuda/kernels/unpacked_linear.h"
#include "cuda/kernels/wgmma.cuh"

namespace adder::cuda {
namespace {

constexpr int kGroups = 2;
constexpr int kThreads = 128 * kGroups + 32;
constexpr int kMostChunks = 32;
constexpr int kMostStages = 16;
constexpr int kLeastStages = 3;
constexpr int kTileBytes = kUnpackedRows * kChunkCols * 2;
constexpr int kTokenBytes = kResidentTokens * kChunkCols * 2;  // of a chunk
constexpr int kSquaresBytes = kResidentTokens * 4;

struct ResidentParams {
  CUtensorMap tokens;
  LinearParams linear;
  const uint16_t* weights;
  int stages;
  int row_blocks;
  float inverse_cols;
};

__global__ void __launch_bounds__(kThreads, 1)
    ResidentLinearKernel(const __grid_constant__ ResidentParams params) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  constexpr int kGroupTokens = kResidentTokens / kGroups;
  // Stages that are on their way to the L2 cache, beyond those of the ring.
  constexpr int kPrefetched = 8;
  const LinearParams& p = params.linear;
  const int chunks = p.matrix.chunks;
  const int stages = params.stages;
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  // Shared memory: tokens [chunk], weights [stage], sums of squares [token].
  extern __shared__ __align__(1024) char bytes[];
  const unsigned shared = SharedAddress(bytes);
  const unsigned ring = shared + chunks * kTokenBytes;
  float* squares = reinterpret_cast<float*>(bytes + chunks * kTokenBytes + stages * kTileBytes);
  __shared__ uint64_t tokens_there[kMostChunks];
  __shared__ uint64_t stage_filled[kMostStages];
  __shared__ uint64_t stage_free[kMostStages];
  if (threadIdx.x < kMostChunks) InitArrival(SharedAddress(tokens_there + threadIdx.x));
  if (threadIdx.x < stages) {
    InitArrival(SharedAddress(stage_filled + threadIdx.x));
    InitArrival(SharedAddress(stage_free + threadIdx.x), 4 * kGroups);
  }
  FenceArrivals();
  __syncthreads();
  const int first_block = static_cast<int>(blockIdx.x);
  const int block_step = static_cast<int>(gridDim.x);
  const bool has_norm = p.norm_weight != nullptr;

  if (warp == 4 * kGroups) {
    const int own_blocks = (params.row_blocks - first_block + block_step - 1) / block_step;
    const int steps = own_blocks * chunks;
    const char* const data = reinterpret_cast<const char*>(params.weights);
    const auto tile_at = [&](int step) {
      const int block = step / chunks;
      const long long tile =
          static_cast<long long>(first_block + block * block_step) * chunks + step - block * chunks;
      return data + tile * kTileBytes;
    };
    const auto copy_weights = [&](int step, int slot) {
      const unsigned barrier = SharedAddress(stage_filled + slot);
      ExpectBytes(barrier, kTileBytes);
      CopyBytes(ring + slot * kTileBytes, tile_at(step), kTileBytes, barrier);
    };
    const int ahead = min(stages, steps);
    if (lane == 0) {
      PrefetchMap(&params.tokens);
#pragma unroll 1
      for (int step = 0; step < ahead; ++step) copy_weights(step, step);
#pragma unroll 1
      for (int step = ahead; step < min(steps, ahead + kPrefetched); ++step) {
        PrefetchBytes(tile_at(step), kTileBytes);
      }
    }
    PdlWait();
    PdlTrigger();
    if (lane == 0) {
#pragma unroll 1
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const unsigned barrier = SharedAddress(tokens_there + chunk);
        ExpectBytes(barrier, kTokenBytes);
        CopyBox(shared + chunk * kTokenBytes, &params.tokens, chunk * kChunkCols, 0, barrier);
      }
      int slot = 0;
      int phase = 0;
#pragma unroll 1
      for (int step = ahead; step < steps; ++step) {
        WaitArrival(SharedAddress(stage_free + slot), phase);
        copy_weights(step, slot);
        if (step + kPrefetched < steps) PrefetchBytes(tile_at(step + kPrefetched), kTileBytes);
        if (++slot == stages) slot = 0, phase ^= 1;
      }
    }
    __syncwarp();
    return;
  }

  const int g = lane / 4;
  const int t = lane % 4;
  const int group = warp / 4;
  const int of_group = warp % 4;
  const int first_token = group * kGroupTokens;
  const auto free_stage = [&](int slot) {
    if (lane == 0) Arrive(SharedAddress(stage_free + slot));
  };
  PdlWait();
  int slot = 0;
  int phase = 0;
#pragma unroll 1
  for (int row_block = first_block; row_block < params.row_blocks; row_block += block_step) {
    const bool is_first = row_block == first_block;
    float acc[kGroupTokens / 2];
    // Of 16 tokens by each warp: see below.
    float low[4] = {};
    float high[4] = {};
    int before = -1;  // the slot that products under way read
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (is_first) WaitArrival(SharedAddress(tokens_there + chunk), 0);
      WaitArrival(SharedAddress(stage_filled + slot), phase);
      const unsigned tokens = shared + chunk * kTokenBytes + first_token * (kChunkCols * 2);
      const uint64_t tokens_operand = OperandInShared(tokens);
      const uint64_t weights_operand = OperandInShared(ring + slot * kTileBytes);
      FenceRegisters();
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Addresses in operands are in units of 16 bytes.
        MultiplyGroup<kGroupTokens>(acc, weights_operand + 2 * j, tokens_operand + 2 * j,
                                    chunk | j);
      }
      CommitProducts();
      if (is_first && has_norm) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          // The diagonal of a tile times itself: of its first eight tokens in `low`, of the others
          // in rows 8 to 15 of `high`.
          unsigned x[4];
          LoadA<kChunkCols>(x, tokens, of_group * 16, 2 * j, lane);
          FreeMma(low, x, x[0], x[2]);
          FreeMma(high, x, x[1], x[3]);
        }
      }
      WaitProducts<1>();
      if (before >= 0) free_stage(before);
      before = slot;
      if (++slot == stages) slot = 0, phase ^= 1;
    }
    WaitProducts<0>();
    free_stage(before);
    if (is_first) {
      if (g / 2 == t) {
        float* of_tile = squares + first_token + of_group * 16;
        of_tile[g] = g % 2 == 0 ? low[0] : low[1];
        of_tile[8 + g] = g % 2 == 0 ? high[2] : high[3];
      }
      asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "r"(128) : "memory");
    }
    const int row = row_block * kUnpackedRows + of_group * 16 + g;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if (row + 8 * r >= p.matrix.rows) continue;
      const float bias = p.bias == nullptr ? 0.0f : p.bias[row + 8 * r];
#pragma unroll
      for (int i = 0; i < kGroupTokens / 4; ++i) {
        const int token = first_token + i / 2 * 8 + 2 * t + i % 2;
        if (token >= p.tokens) continue;
        const float factor =
            has_norm ? rsqrtf(fmaf(squares[token], params.inverse_cols, p.norm_eps)) : 1.0f;
        p.output[static_cast<long long>(token) * p.output_stride + row + 8 * r] =
            p.scale * fmaf(acc[i / 2 * 4 + 2 * r + i % 2], factor, bias);
      }
    }
  }
#endif
}

}  // namespace

bool LaunchResidentLinear(const LinearParams& p, const uint16_t* unpacked, int multiprocessors,
                          cudaStream_t stream) {
  const PackedMatrix& m = p.matrix;
  const int row_blocks = (m.tiles * kTileRows + kUnpackedRows - 1) / kUnpackedRows;
  const int free = DeviceSharedBytes() - m.chunks * kTokenBytes - kSquaresBytes;
  const int stages = std::min(kMostStages, free / kTileBytes);
  if (p.tokens <= kResidentTokens / 2 || p.tokens > kResidentTokens || stages < kLeastStages ||
      m.chunks > kMostChunks || row_blocks < 4 * multiprocessors || m.interleaved ||
      p.epilogue != LinearEpilogue::kStore || p.rounded_output != nullptr ||
      p.rounded_input_stride % 8 != 0) {
    return false;
  }
  const ResidentParams params = {MapTokens(p, kResidentTokens),    p, unpacked, stages, row_blocks,
                                 1.0f / static_cast<float>(m.cols)};
  const int bytes = m.chunks * kTokenBytes + stages * kTileBytes + kSquaresBytes;
  Check(cudaFuncSetAttribute(ResidentLinearKernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             DeviceSharedBytes()),
        "setting the shared memory of the matrix kernel of heads");
  Launch("the matrix kernel of heads", ResidentLinearKernel,
         dim3(static_cast<unsigned>(multiprocessors)), dim3(kThreads), static_cast<size_t>(bytes),
         stream, params);
  return true;
}

}  // namespace adder::cuda
