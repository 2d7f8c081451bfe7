// Attention with an online softmax for wide heads. Sums of 64 rows of 512 elements fill the
// registers of eight warps, so that queries, and the softmax's weights, stay in shared memory.
//
// A block of 8 warps owns a KV head and 64 pairs of a query of a piece and one of the query heads
// of that KV head: latent attention has one KV head for all. Phases: (1) queries to shared memory
// as bf16, rotated where they are latent attention's; (2) per kKeys positions: keys (and values,
// where they are not the keys' beginning) are on their way to shared memory ahead of time; a warp
// multiplies 16 rows with half of the keys, or all; barrier; largest weights of rows meet; weights
// go to shared memory; barrier; a warp adds up kValueDim / 8 columns of all 64 rows; (3) division
// by the sums. Barriers: before a buffer of keys is filled again every warp has used it; largest
// weights change between two places in turn. Positions behind the sequence's end enter as zeros
// with weight 0: pages hold anything there. Preconditions: every position of the batch's runs is in
// the pages.
#include <algorithm>

#include "cuda/kernels/attention_gate.cuh"
#include "cuda/kernels/attention_wide_heads.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/rotation.cuh"
#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kRows = 64;
constexpr int kRowWarps = kRows / 16;
constexpr float kLog2E = 1.44269504f;
// Below any product, but finite: queries of a window may see nothing of the first positions.
constexpr float kLowest = -1e30f;

// kRope: elements of a key behind its value; 0: values lie apart. Sizes are rounded up to those
// that are compiled.
template <int kValueSize, int kRopeSize, int kKeyCount, int kStageCount>
struct WideHeads {
  static constexpr int kValueDim = kValueSize;
  static constexpr int kRope = kRopeSize;
  static constexpr int kKeys = kKeyCount;
  static constexpr int kStages = kStageCount;
  static constexpr bool kLatent = kRope > 0;
  static constexpr int kKeyDim = kValueDim + kRope;
  // Warps side by side over the keys.
  static constexpr int kColWarps = kKeys >= 32 ? 2 : 1;
  static constexpr int kWarpKeys = kKeys / kColWarps;
  static constexpr int kQueryBytes = kRows * kKeyDim * 2;
  static constexpr int kKeyBytes = kKeys * kKeyDim * 2;
  static constexpr int kStageBytes = kKeyBytes + (kLatent ? 0 : kKeys * kValueDim * 2);
  static constexpr int kWeightBytes = kRows * kKeys * 2;
  // queries | stages | weights | largest [2][kRows] | of warps [kColWarps][kRows]
  static constexpr int kStagesAt = kQueryBytes;
  static constexpr int kWeightsAt = kStagesAt + kStages * kStageBytes;
  static constexpr int kLargestAt = kWeightsAt + kWeightBytes;
  static constexpr int kOfWarpsAt = kLargestAt + 2 * kRows * 4;
  static constexpr int kBytes = kOfWarpsAt + kColWarps * kRows * 4;
};

// Byte offset of a unit of the weights.
template <int kKeys>
__device__ __forceinline__ int WeightOffset(int row, int unit) {
  if constexpr (kKeys == 16) {
    return row * 32 + (unit ^ (row / 4 & 1)) * 16;
  } else {
    return UnitOffset<kKeys>(row, unit);
  }
}

// What a block works on.
struct BlockRows {
  Piece piece;
  SequenceRun run;
  int kv_head;
  int group;       // query heads of the KV head
  int first_pair;  // of the piece: queries in order, of each its heads
  int pairs;       // at most kRows

  __device__ __forceinline__ int Query(int row) const { return (first_pair + row) / group; }
  __device__ __forceinline__ int Head(int row) const {
    return kv_head * group + (first_pair + row) % group;
  }
  __device__ __forceinline__ int Position(int row) const {
    return run.position + piece.row - run.row + Query(row);
  }
};

template <class W>
__device__ __forceinline__ void LoadHeads(const AttentionParams& p, const BlockRows& block,
                                          unsigned char* to) {
  constexpr int kUnits = W::kKeyDim / 8;
  for (int i = threadIdx.x; i < kRows * kUnits; i += kThreads) {
    const int r = i / kUnits;
    const int unit = i % kUnits;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (r < block.pairs && unit * 8 < p.head_dim) {
      const float* from = p.qkv +
                          static_cast<long long>(block.piece.row + block.Query(r)) * p.qkv_stride +
                          block.Head(r) * p.head_dim + unit * 8;
      const float4 low = *reinterpret_cast<const float4*>(from);
      const float4 high = *reinterpret_cast<const float4*>(from + 4);
      words = make_uint4(PackBf16(low.x, low.y), PackBf16(low.z, low.w), PackBf16(high.x, high.y),
                         PackBf16(high.z, high.w));
    }
    *reinterpret_cast<uint4*>(to + UnitOffset<W::kKeyDim>(r, unit)) = words;
  }
}

template <class W>
__device__ __forceinline__ void LoadLatentQueries(const AttentionParams& p,
                                                  const LatentQueries& queries,
                                                  const BlockRows& block, unsigned char* to) {
  constexpr int kLatentUnits = W::kValueDim / 8;
  constexpr int kUnits = W::kKeyDim / 8;
  for (int i = threadIdx.x; i < kRows * kUnits; i += kThreads) {
    const int r = i / kUnits;
    const int unit = i % kUnits;
    uint4 words = make_uint4(0, 0, 0, 0);
    if (r < block.pairs && unit * 8 < p.latent) {
      words = *reinterpret_cast<const uint4*>(
          queries.absorbed +
          static_cast<long long>(block.piece.row + block.Query(r)) * queries.absorbed_stride +
          block.Head(r) * p.latent + unit * 8);
    }
    // The second part is written below, as far as it goes.
    const int rope_unit = unit - kLatentUnits;
    if (r < block.pairs && rope_unit >= 0 && rope_unit * 8 < p.head_dim - p.latent) continue;
    *reinterpret_cast<uint4*>(to + UnitOffset<W::kKeyDim>(r, unit)) = words;
  }
  const int rope_dim = p.head_dim - p.latent;
  const int half = rope_dim / 2;
  for (int i = threadIdx.x; i < block.pairs * half; i += kThreads) {
    const int r = i / half;
    const int pair = i % half;
    const float* from =
        queries.query +
        static_cast<long long>(block.piece.row + block.Query(r)) * queries.query_stride +
        block.Head(r) * (queries.nope_dim + rope_dim) + queries.nope_dim;
    const int first = p.interleaved ? 2 * pair : pair;
    const int second = p.interleaved ? 2 * pair + 1 : pair + half;
    float a = from[first];
    float b = from[second];
    if (p.inverse_frequencies != nullptr) {
      const float2 turned = Turned(Rotation(p, block.Position(r), pair), a, b);
      a = turned.x;
      b = turned.y;
    }
    const auto store = [&](int column, float x) {
      *reinterpret_cast<__nv_bfloat16*>(to + UnitOffset<W::kKeyDim>(r, kLatentUnits + column / 8) +
                                        column % 8 * 2) = __float2bfloat16_rn(x);
    };
    store(first, a);
    store(second, b);
  }
}

template <class W>
__global__ void __launch_bounds__(kThreads, 1)
    WideHeadKernel(const __grid_constant__ AttentionChunkParams c,
                   const __grid_constant__ LatentQueries queries) {
  const AttentionParams& p = c.attention;
  constexpr int kKeys = W::kKeys;
  constexpr int kKeyDim = W::kKeyDim;
  constexpr int kValueDim = W::kValueDim;
  extern __shared__ __align__(128) unsigned char shared[];
  float* largest = reinterpret_cast<float*>(shared + W::kLargestAt);
  float* of_warps = reinterpret_cast<float*>(shared + W::kOfWarpsAt);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int row_warp = warp % kRowWarps;
  const int col_warp = warp / kRowWarps;
  const bool scores = col_warp < W::kColWarps;
  const int g = lane / 4;
  const int t = lane % 4;
  PdlWait();
  PdlTrigger();
  BlockRows block;
  block.group = p.heads / p.kv_heads;
  block.kv_head = static_cast<int>(blockIdx.x);
  // The last pieces see the most positions: they start first.
  const int from_end = static_cast<int>(gridDim.y - 1 - blockIdx.y);
  const int per_piece = kPieceTokens * block.group / kRows;
  block.piece = c.pieces[from_end / per_piece];
  block.first_pair = from_end % per_piece * kRows;
  block.pairs = min(kRows, block.piece.tokens * block.group - block.first_pair);
  if (block.pairs <= 0) return;
  block.run = p.runs[block.piece.run];
  const int first_position = block.Position(0);
  const int last_position = block.Position(block.pairs - 1);
  const int length = block.run.position + block.run.tokens;
  const int end = last_position / kKeys + 1;
  // Positions of a query are after its own less this.
  const int window = p.window > 0 ? p.window : last_position + 1;
  const int begin = max(0, first_position - window + 1) / kKeys;
  const unsigned base = SharedAddress(shared);

  const long long to_values = static_cast<long long>(p.kv_heads) * p.page_positions * p.head_dim;
  const auto copy = [&](int step) {
    constexpr int kUnits = kKeyDim / 8;
    const int first = step * kKeys;
    const char* page = block.run.pages[first / p.page_positions];
    const auto* keys =
        reinterpret_cast<const __nv_bfloat16*>(page + p.kv_offset) +
        (static_cast<long long>(block.kv_head) * p.page_positions + first % p.page_positions) *
            p.head_dim;
    const unsigned stage = base + W::kStagesAt + step % W::kStages * W::kStageBytes;
    for (int i = thread; i < kKeys * kUnits; i += kThreads) {
      const int r = i / kUnits;
      const int unit = i % kUnits;
      const bool inside = first + r < length;
      if constexpr (W::kLatent) {
        const int column = unit * 8;
        const bool in_rope = column >= kValueDim;
        const int at = in_rope ? column - kValueDim + p.latent : column;
        const bool valid = inside && at < (in_rope ? p.head_dim : p.latent);
        const __nv_bfloat16* from = valid ? keys + r * p.head_dim + at : keys;
        CopyAsync(stage + UnitOffset<kKeyDim>(r, unit), from, valid);
      } else {
        const bool valid = inside && unit * 8 < p.head_dim;
        const __nv_bfloat16* from = valid ? keys + r * p.head_dim + unit * 8 : keys;
        CopyAsync(stage + UnitOffset<kKeyDim>(r, unit), from, valid);
        CopyAsync(stage + W::kKeyBytes + UnitOffset<kValueDim>(r, unit), from + to_values, valid);
      }
    }
    CopyCommit();
  };
  if constexpr (W::kStages > 1) copy(begin);
  if constexpr (W::kLatent) {
    LoadLatentQueries<W>(p, queries, block, shared);
  } else {
    LoadHeads<W>(p, block, shared);
  }
  if (thread < kRows) largest[thread] = kLowest;

  const float scale = p.scale * kLog2E;
  const int own_row = row_warp * 16 + g;  // and eight behind it
  const int positions[2] = {block.Position(min(own_row, block.pairs - 1)),
                            block.Position(min(own_row + 8, block.pairs - 1))};
  constexpr int kRowTiles = kRows / 16;
  constexpr int kColumns = kValueDim / kWarps;  // of a warp
  float out[kRowTiles][kColumns / 8][4] = {};
  float sums[2] = {};
#pragma unroll 1
  for (int step = begin; step < end; ++step) {
    const int turn = (step - begin) % 2;
    if constexpr (W::kStages == 1) {
      if (step > begin) __syncthreads();
      copy(step);
    }
    CopyWait<0>();
    __syncthreads();
    if constexpr (W::kStages > 1) {
      if (step + 1 < end) copy(step + 1);
    }
    const unsigned k_tile = base + W::kStagesAt + step % W::kStages * W::kStageBytes;
    const int first_key = step * kKeys + col_warp * W::kWarpKeys;
    float weights[W::kWarpKeys / 8][4] = {};
    if (scores) {
#pragma unroll 4
      for (int k = 0; k < kKeyDim / 16; ++k) {
        unsigned a[4];
        LoadA<kKeyDim>(a, base, row_warp * 16, 2 * k, lane);
#pragma unroll
        for (int n = 0; n < W::kWarpKeys / 16; ++n) {
          unsigned b[4];
          LoadB<kKeyDim>(b, k_tile, col_warp * W::kWarpKeys + n * 16, 2 * k, lane);
          MmaPair(weights[2 * n], weights[2 * n + 1], a, b);
        }
      }
      const bool masked =
          step * kKeys + kKeys > first_position + 1 || step * kKeys <= last_position - window;
      float own[2] = {kLowest, kLowest};
#pragma unroll
      for (int n = 0; n < W::kWarpKeys / 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float& weight = weights[n][e];
          weight *= scale;
          const int back = positions[e / 2] - (first_key + n * 8 + 2 * t + e % 2);
          if (masked && (back < 0 || back >= window)) weight = -INFINITY;
          own[e / 2] = fmaxf(own[e / 2], weight);
        }
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        own[r] = fmaxf(own[r], __shfl_xor_sync(0xffffffffu, own[r], 1));
        own[r] = fmaxf(own[r], __shfl_xor_sync(0xffffffffu, own[r], 2));
        if (t == 0) of_warps[col_warp * kRows + own_row + 8 * r] = own[r];
      }
    }
    __syncthreads();
    const auto merged = [&](int row) {
      float most = fmaxf(largest[turn * kRows + row], of_warps[row]);
      if constexpr (W::kColWarps == 2) most = fmaxf(most, of_warps[kRows + row]);
      return most;
    };
    if (scores) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = own_row + 8 * r;
        const float most = merged(row);
        sums[r] *= Exp2(largest[turn * kRows + row] - most);
        if (col_warp == 0 && t == 0) largest[(turn ^ 1) * kRows + row] = most;
#pragma unroll
        for (int n = 0; n < W::kWarpKeys / 8; ++n) {
          const float low = Exp2(weights[n][2 * r] - most);
          const float high = Exp2(weights[n][2 * r + 1] - most);
          sums[r] += low + high;
          const int unit = col_warp * (W::kWarpKeys / 8) + n;
          *reinterpret_cast<unsigned*>(shared + W::kWeightsAt + WeightOffset<kKeys>(row, unit) +
                                       4 * t) = PackBf16(low, high);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = m * 16 + g + 8 * r;
        const float keep = Exp2(largest[turn * kRows + row] - merged(row));
#pragma unroll
        for (int n = 0; n < kColumns / 8; ++n) {
          out[m][n][2 * r] *= keep;
          out[m][n][2 * r + 1] *= keep;
        }
      }
    }
    __syncthreads();
    constexpr int kValueStride = W::kLatent ? kKeyDim : kValueDim;
    const unsigned v_tile = W::kLatent ? k_tile : k_tile + W::kKeyBytes;
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k) {
      unsigned a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        LoadMatrices(a[m], base + W::kWeightsAt +
                               WeightOffset<kKeys>(m * 16 + lane % 16, 2 * k + lane / 16));
      }
#pragma unroll
      for (int n = 0; n < kColumns / 16; ++n) {
        unsigned b[4];
        LoadBTransposed<kValueStride>(b, v_tile, k * 16, warp * (kColumns / 8) + 2 * n, lane);
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) MmaPair(out[m][2 * n], out[m][2 * n + 1], a[m], b);
      }
    }
  }
  if (scores) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 1);
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], 2);
      if (t == 0) of_warps[col_warp * kRows + own_row + 8 * r] = sums[r];
    }
  }
  __syncthreads();
  const int width = W::kLatent ? p.latent : p.head_dim;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = m * 16 + g + 8 * r;
      if (row >= block.pairs) continue;
      float sum = of_warps[row];
      if constexpr (W::kColWarps == 2) sum += of_warps[kRows + row];
      const float factor = 1.0f / sum;
      const long long token = block.piece.row + block.Query(row);
      const int head = block.Head(row);
      __nv_bfloat16* to = c.output + token * c.output_stride + head * width;
#pragma unroll
      for (int n = 0; n < kColumns / 8; ++n) {
        const int dim = warp * kColumns + n * 8 + 2 * t;
        if (dim >= width) continue;
        float2 value = make_float2(out[m][n][2 * r] * factor, out[m][n][2 * r + 1] * factor);
        if (!W::kLatent && p.output_gate) {
          value.x *= OutputGate(p, token, head * width + dim);
          value.y *= OutputGate(p, token, head * width + dim + 1);
        }
        *reinterpret_cast<unsigned*>(to + dim) = PackBf16(value.x, value.y);
      }
    }
  }
}

template <class W>
void LaunchSized(const AttentionChunkParams& params, const LatentQueries& queries,
                 cudaStream_t stream) {
  const AttentionParams& p = params.attention;
  const int per_piece = kPieceTokens * (p.heads / p.kv_heads) / kRows;
  AllowSharedMemory(WideHeadKernel<W>, W::kBytes);
  Launch("the kernel of attention with wide heads", WideHeadKernel<W>,
         dim3(static_cast<unsigned>(p.kv_heads),
              static_cast<unsigned>(per_piece * params.piece_count)),
         dim3(kThreads), size_t{W::kBytes}, stream, params, queries);
}

// The first that the device has shared memory for.
template <class First, class... Rest>
void LaunchFitting(const AttentionChunkParams& params, const LatentQueries& queries,
                   cudaStream_t stream) {
  if constexpr (sizeof...(Rest) > 0) {
    if (DeviceSharedBytes() < First::kBytes) {
      return LaunchFitting<Rest...>(params, queries, stream);
    }
  } else {
    static_assert(First::kBytes <= 99 * 1024, "the smallest devices have no more");
  }
  LaunchSized<First>(params, queries, stream);
}

constexpr int kMostKeys = 64;

}  // namespace

bool LatentChunksSupport(int latent, int rope_dim, int page_positions) {
  return latent % 8 == 0 && rope_dim % 8 == 0 && latent <= kMostWideHeadDim &&
         rope_dim <= kMostLatentRope && page_positions % kMostKeys == 0;
}

void LaunchWideHeadChunks(const AttentionChunkParams& params, cudaStream_t stream) {
  constexpr int kDim = kMostWideHeadDim;
  LaunchFitting<WideHeads<kDim, 0, 32, 2>, WideHeads<kDim, 0, 32, 1>, WideHeads<kDim, 0, 16, 1>>(
      params, {}, stream);
}

void LaunchLatentChunks(const AttentionChunkParams& params, const LatentQueries& queries,
                        cudaStream_t stream) {
  constexpr int kDim = kMostWideHeadDim;
  constexpr int kRope = kMostLatentRope;
  if (params.attention.latent <= 128) {
    return LaunchFitting<WideHeads<128, kRope, 32, 2>>(params, queries, stream);
  }
  LaunchFitting<WideHeads<kDim, kRope, kMostKeys, 2>, WideHeads<kDim, kRope, 32, 2>,
                WideHeads<kDim, kRope, 16, 1>>(params, queries, stream);
}

}  // namespace adder::cuda
