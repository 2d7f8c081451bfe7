// The matrix kernel for two to eight tokens: the tokens are the eight columns of a multiplication.
//
// Phases: (1) each warp starts copying its first chunks of weights to shared memory, and the block
// the norm's weight; (2) PdlWait; (3) the block makes its tokens' rows, times the norm's weight,
// into operands in shared memory and adds up their squares; a cluster's blocks share that work and
// write what they made into each other's memory; barrier; (4) warps multiply their chunks. Then, in
// blocks: partial sums to shared memory, barrier, a thread per output adds them up and applies the
// norm's factor, bias and epilogue. In streams: each warp goes over whole tiles, a grid apart, and
// finishes them itself; no further barrier.
//
// Operands are those of one token's kernel (see matvec_phases.cuh) but for their columns: quantised
// weights meet 16-bit integers, whose high and low bytes are multiplied apart, all tokens at once;
// sums of a chunk (where scales are one per 32 columns: of its halves) are scaled as they come.
// Weights in floating point meet activations split into two bf16 numbers.
//
// Ownership: blockIdx.y owns `places` tokens. In blocks, blockIdx.x owns row_warps tiles and column
// warp w the chunks from w * warp_chunks on; in streams, warp i of the grid owns tiles i, i + warps
// of the grid, ... A warp reads only weights that it copied itself.
// Precondition: the input's rows begin on 16-byte boundaries, and so does the norm's weight.
#include <algorithm>

#include "core/error.h"
#include "cuda/kernels/cluster.cuh"
#include "cuda/kernels/few_linear.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/matvec.h"
#include "cuda/kernels/matvec_phases.cuh"

namespace adder::cuda {
namespace {

constexpr int kMostWarps = 16;
// Shared memory that a block fills with weights; two such blocks, of this kernel and the next, fit
// on a multiprocessor.
constexpr int kMostWeightBytes = 96 * 1024;
// Tiles of a router's matrix that one block multiplies alone.
constexpr int kMostRouterTiles = 8;
// Distance between tokens of partial sums: lanes then write to different banks.
constexpr int kSumsPitch = kTileRows + 4;
// Chunks that a warp has in flight when it cannot hold all of them.
constexpr int RingOf(WeightFormat format) {
  switch (LoadsOf(format)) {
    case 1:
      return 6;
    case 2:
      return 4;
    case 4:
      return 3;
    default:
      return 2;
  }
}

// How a warp goes over its chunks.
enum class FewWalk {
  kOnce,    // it copies all of them at the beginning
  kLoop,    // all of one tile, through a ring
  kStream,  // all of many tiles, through a ring
};

// Bytes of an operand of one token and chunk.
constexpr int OperandBytes(WeightFormat format) { return (IsQuantized(format) ? 2 : 4) * 64; }

// Where a block's shared memory has what follows its weights [warps][slots]; bytes.
struct FewLayout {
  int operands;  // [chunk][high, low (, of 32 columns)][place][64 bytes]
  int units;     // [chunk][place], of integers
  int sums;      // [chunk][groups][place], of integers
  int norm;      // [chunks * 64], the norm's weight
  int squares;   // [place][warps of the cluster]
  int partial;   // [warp][place][kSumsPitch]
  int total;
};

struct FewParams {
  LinearParams linear;
  FewLayout layout;
  int token_bits;  // log2 of the tokens for which a block has places
  int row_warps;
  int column_warps;
  int warp_chunks;  // of a column warp
  int share;        // blocks of a cluster
  float inverse_cols;
  bool triggers_early;
  int first_round;  // 0: rehearses
};

__device__ __forceinline__ void StoreAt(unsigned address, uint4 value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
#else
  asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
#endif
}
__device__ __forceinline__ void StoreAt(unsigned address, float value) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#else
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
#endif
}

// As MmaInteger, for 16 columns.
__device__ __forceinline__ void MmaHalf(int (&c)[4], unsigned a0, unsigned a1, unsigned b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

// The operands that lane t of a quad has of a token and chunk: its columns 8 t + i and 32 + 8 t + i
// (see packed_matrix.h), x[i] and x[8 + i].
struct Integers {
  uint4 high;
  uint4 low;
  float largest;
  int sums[2];  // of the quad's integers, of 32 columns each
};

template <WeightFormat F>
__device__ __forceinline__ Integers MakeIntegers(const float (&x)[16]) {
  Integers result;
  float largest = 1e-30f;
#pragma unroll
  for (int i = 0; i < 16; ++i) largest = MaxOrNan(largest, fabsf(x[i]));
  largest = MaxOrNan(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
  largest = MaxOrNan(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
  result.largest = largest;
  float multiplier;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(multiplier) : "f"(largest));
  multiplier *= kLargestQuantized;
  // 1.5 * 2^23 + 128 + q has q + 128 in its lower bits: byte 1 is the high byte, and byte 0 the low
  // one with its sign bit flipped.
  constexpr float kRound = 12582912.0f + 128.0f;
  constexpr unsigned kRoundBits = 0x4b400000u + 128u;
  const auto pack = [&](const unsigned(&q)[8], int a, int b, int c, int d, unsigned& high,
                        unsigned& low) {
    const unsigned first = __byte_perm(q[a], q[b], 0x5140u);
    const unsigned second = __byte_perm(q[c], q[d], 0x5140u);
    high = __byte_perm(first, second, 0x7632u);
    low = __byte_perm(first, second, 0x5410u) ^ 0x80808080u;
  };
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    unsigned q[8];
    unsigned sum = 0u - 8u * kRoundBits;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      q[i] = __float_as_uint(fmaf(x[8 * h + i], multiplier, kRound));
      sum += q[i];
    }
    if constexpr (F == WeightFormat::kQ4) {
      pack(q, 0, 4, 1, 5, h == 0 ? result.high.x : result.high.y,
           h == 0 ? result.low.x : result.low.y);
      pack(q, 2, 6, 3, 7, h == 0 ? result.high.z : result.high.w,
           h == 0 ? result.low.z : result.low.w);
    } else {
      pack(q, 0, 1, 2, 3, h == 0 ? result.high.x : result.high.z,
           h == 0 ? result.low.x : result.low.z);
      pack(q, 4, 5, 6, 7, h == 0 ? result.high.y : result.high.w,
           h == 0 ? result.low.y : result.low.w);
    }
    result.sums[h] = static_cast<int>(sum);
  }
  return result;
}

// acc += a chunk of a tile times eight tokens, in the layout of products: rows g, g + 8 and places
// 2 t, 2 t + 1. `operands`, `units` and `sums` are the chunk's.
template <WeightFormat F, bool kWide>
__device__ __forceinline__ void MultiplyChunk(const unsigned char* weights,
                                              const unsigned char* operands, const float* units,
                                              const float* sums, int places, int lane,
                                              ScaleFormat format, float (&acc)[4]) {
  const int g = lane / 4;
  const int t = lane % 4;
  const uint4* data = reinterpret_cast<const uint4*>(weights) + lane;
  // Columns without a token repeat others.
  const uint4* own = reinterpret_cast<const uint4*>(operands) + (g & (places - 1)) * 4 + t;
  if constexpr (!IsQuantized(F)) {
    unsigned b[2][4][2];
#pragma unroll
    for (int rest = 0; rest < 2; ++rest) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint4 word = own[(2 * rest + h) * places * 4];
        b[rest][2 * h][0] = word.x, b[rest][2 * h][1] = word.y;
        b[rest][2 * h + 1][0] = word.z, b[rest][2 * h + 1][1] = word.w;
      }
    }
    uint4 raw[LoadsOf(F)];
#pragma unroll
    for (int i = 0; i < LoadsOf(F); ++i) raw[i] = data[i * 32];
#pragma unroll
    for (int part = 0; part < Fragment<F>::kParts; ++part) {
      unsigned a[4][4];
      Fragment<F>::template Expand<false>(raw, part, a);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        Mma(acc, a[i], b[0][i]);
        Mma(acc, a[i], b[1][i]);
      }
    }
  } else {
    constexpr int kGroups = kWide ? 2 : 1;
    const uint4 high = own[0];
    const uint4 low = own[places * 4];
    int whole[kGroups][4] = {};
    int rest[kGroups][4] = {};
    if constexpr (F == WeightFormat::kQ4) {
      constexpr unsigned kMask = 0x0f0f0f0fu;
      const uint4 w = data[0];
      const uint4 a = make_uint4(w.x & kMask, w.y & kMask, w.z & kMask, w.w & kMask);
      const uint4 b =
          make_uint4(w.x >> 4 & kMask, w.y >> 4 & kMask, w.z >> 4 & kMask, w.w >> 4 & kMask);
      if constexpr (kWide) {
        MmaHalf(whole[0], a.x, a.y, high.x);
        MmaHalf(whole[1], a.z, a.w, high.y);
        MmaHalf(rest[0], a.x, a.y, low.x);
        MmaHalf(rest[1], a.z, a.w, low.y);
        MmaHalf(whole[0], b.x, b.y, high.z);
        MmaHalf(whole[1], b.z, b.w, high.w);
        MmaHalf(rest[0], b.x, b.y, low.z);
        MmaHalf(rest[1], b.z, b.w, low.w);
      } else {
        MmaInteger(whole[0], a.x, a.y, a.z, a.w, high.x, high.y);
        MmaInteger(rest[0], a.x, a.y, a.z, a.w, low.x, low.y);
        MmaInteger(whole[0], b.x, b.y, b.z, b.w, high.z, high.w);
        MmaInteger(rest[0], b.x, b.y, b.z, b.w, low.z, low.w);
      }
    } else {
      // A load is half a chunk.
      const uint4 a = data[0];
      const uint4 b = data[32];
      MmaInteger(whole[0], a.x, a.y, a.z, a.w, high.x, high.y);
      MmaInteger(rest[0], a.x, a.y, a.z, a.w, low.x, low.y);
      MmaInteger(whole[kGroups - 1], b.x, b.y, b.z, b.w, high.z, high.w);
      MmaInteger(rest[kGroups - 1], b.x, b.y, b.z, b.w, low.z, low.w);
    }
    const int place = 2 * t & (places - 1);
    const float2 unit = *reinterpret_cast<const float2*>(units + place);
    const unsigned char* scales = weights + LoadsOf(F) * 512;
#pragma unroll
    for (int group = 0; group < kGroups; ++group) {
      const float2 sum = *reinterpret_cast<const float2*>(sums + group * places + place);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float2 pair =
            WeightSpan<F, kWide>::ScaleAndBias(scales, group * kTileRows + g + 8 * r, format);
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const int i = 2 * r + c;
          const float product = static_cast<float>(whole[group][i] * 256 + rest[group][i]);
          acc[i] = fmaf(pair.x * (c == 0 ? unit.x : unit.y), product,
                        fmaf(pair.y, c == 0 ? sum.x : sum.y, acc[i]));
        }
      }
    }
  }
}

// The last step of an output: `y` (and `up`) are whole sums, times the norm's factor.
template <bool kRoutes>
struct FewOutputs {
  bool gated;
  float* values;
  int stride;
  int rows;

  __device__ __forceinline__ FewOutputs(const LinearParams& p, int first_token)
      : gated(p.epilogue == LinearEpilogue::kSiluMul) {
    rows = gated ? p.matrix.rows / 2 : p.matrix.rows;
    stride = kRoutes ? p.matrix.rows : p.output_stride;
    values = (kRoutes ? p.scores : p.output) + static_cast<long long>(first_token) * stride;
  }
  __device__ __forceinline__ float* At(int place, int row) const {
    return values + static_cast<long long>(place) * stride + row;
  }
  __device__ __forceinline__ float Old(const LinearParams& p, int place, int row) const {
    return p.epilogue == LinearEpilogue::kAdd ? *At(place, row) : 0.0f;
  }
  // Of the row, and of the other half of a gated projection.
  __device__ __forceinline__ float2 Bias(const LinearParams& p, int row) const {
    if (p.bias == nullptr) return make_float2(0, 0);
    return make_float2(p.bias[row], gated ? p.bias[rows + row] : 0.0f);
  }
  __device__ __forceinline__ void Store(const LinearParams& p, int place, int row, float y,
                                        float up, float2 bias, float old) const {
    y += bias.x;
    if constexpr (kRoutes) {
      __stcg(At(place, row), y);
    } else {
      *At(place, row) = gated ? FastSilu(y) * (up + bias.y) : fmaf(p.scale, y, old);
    }
  }
};

template <WeightFormat F, bool kWide, FewWalk kWalk, bool kRoutes>
__global__ void __launch_bounds__(kMostWarps * 32, LoadsOf(F) <= 4 ? 2 : 1)
    FewLinearKernel(const __grid_constant__ FewParams params) {
  constexpr int kLoads = LoadsOf(F);
  constexpr int kScaleBytes = !IsQuantized(F) ? 0 : kWide ? 256 : 64;
  constexpr int kUnit = kLoads * 512 + kScaleBytes;
  constexpr int kRing = RingOf(F);
  constexpr int kGroups = kWide ? 2 : 1;
  constexpr bool kStream = kWalk == FewWalk::kStream;
  const LinearParams& p = params.linear;
  const PackedMatrix& m = p.matrix;
  const FewLayout& layout = params.layout;
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  // The same in all lanes, which the compiler cannot know of a quotient.
  const int warp = __shfl_sync(0xffffffffu, thread / 32, 0);
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int places = 1 << params.token_bits;
  const int first_token = static_cast<int>(blockIdx.y) * places;
  const int tokens = min(places, p.tokens - first_token);
  const int share = params.share;
  const int rank = static_cast<int>(blockIdx.x) % share;
  const bool has_norm = p.norm_weight != nullptr;

  const int row_warp = kStream ? warp : warp / params.column_warps;
  const int column_warp = kStream ? 0 : warp - row_warp * params.column_warps;
  const int first_tile = static_cast<int>(blockIdx.x) * params.row_warps + row_warp;
  const int tile_step = static_cast<int>(gridDim.x) * params.row_warps;
  const bool multiplies = row_warp < params.row_warps && first_tile < m.tiles;
  const int first_chunk = column_warp * params.warp_chunks;
  const int my_chunks = min(params.warp_chunks, m.chunks - first_chunk);

  extern __shared__ uint4 shared[];
  unsigned char* bytes = reinterpret_cast<unsigned char*>(shared);
  const int slots = kWalk == FewWalk::kOnce ? params.warp_chunks : kRing;
  unsigned char* weights = bytes + warp * slots * kUnit;
  float* norm = reinterpret_cast<float*>(bytes + layout.norm);
  float* squares = reinterpret_cast<float*>(bytes + layout.squares);
  const int preparers = share * warps;
  // All of the blocks that share preparation.
  const auto meet = [&] {
    if (share > 1) {
      ClusterArrive();
      ClusterWait();
    } else {
      __syncthreads();
    }
  };

  if (has_norm) {
#pragma unroll 1
    for (int col = 4 * thread; col < m.chunks * kChunkCols; col += 4 * blockDim.x) {
      if (col < m.cols) {
        CopyAsync(norm + col, p.norm_weight + col);
      } else {
        *reinterpret_cast<float4*>(norm + col) = make_float4(0, 0, 0, 0);
      }
    }
  }
  CommitCopies();
  const long long first_place = static_cast<long long>(first_tile) * m.chunks + first_chunk;
  const uint4* data = m.data + first_place * (kLoads * 32) + lane;
  const unsigned char* scales =
      static_cast<const unsigned char*>(m.scales) + first_place * kScaleBytes + lane * 16;
  int to_copy = !multiplies ? 0
                : kStream   ? (m.tiles - first_tile + tile_step - 1) / tile_step * m.chunks
                            : my_chunks;
  int of_tile = m.chunks;
  const auto copy_next = [&](int slot) {
    if (to_copy == 0) return;
    --to_copy;
    unsigned char* to = weights + slot * kUnit + lane * 16;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) CopyAsync(to + i * 512, data + i * 32);
    if (lane < kScaleBytes / 16) CopyAsync(to + kLoads * 512, scales);
    data += kLoads * 32;
    scales += kScaleBytes;
    if (kStream && --of_tile == 0) {
      of_tile = m.chunks;
      const long long skipped = static_cast<long long>(tile_step - 1) * m.chunks;
      data += skipped * (kLoads * 32);
      scales += skipped * kScaleBytes;
    }
  };
#pragma unroll 1
  for (int slot = 0; slot < slots; ++slot) {
    copy_next(slot);
    if (kWalk != FewWalk::kOnce) CommitCopies();
  }
  if (kWalk == FewWalk::kOnce) CommitCopies();

  // In blocks: the first output that this thread finishes.
  const FewOutputs<kRoutes> outputs(p, first_token);
  const int row_bits = outputs.gated ? 3 : 4;
  const int items = params.row_warps << (row_bits + params.token_bits);
  const auto place_of = [&](int item) { return item >> row_bits & (places - 1); };
  const auto row_of = [&](int item) {
    const int tile =
        static_cast<int>(blockIdx.x) * params.row_warps + (item >> (row_bits + params.token_bits));
    return (tile << row_bits) + (item & ((1 << row_bits) - 1));
  };
  const auto exists = [&](int item) {
    return item < items && place_of(item) < tokens && row_of(item) < outputs.rows;
  };
  const bool finishes = !kStream && exists(thread);
  const float2 first_bias = finishes ? outputs.Bias(p, row_of(thread)) : make_float2(0, 0);
  // The norm's weight has arrived.
  WaitForCopies<kWalk == FewWalk::kOnce ? 1 : kRing>();
  meet();

#pragma unroll 1
  for (int round = kStream ? 1 : params.first_round; round < 2; ++round) {
    const bool real = round == 1;
    if (real) {
      if (params.triggers_early) PdlTrigger();
      PdlWait();
      if (!params.triggers_early) PdlTrigger();
    }
    const float first_old =
        finishes && real ? outputs.Old(p, place_of(thread), row_of(thread)) : 0.0f;
    {
      const int cols = real ? m.cols : 0;
      // Lanes: a quad has a chunk of a token. Places without a token repeat the last.
      const int part = lane % 4;
      const int place = lane / 4 & (places - 1);
      const int pass_chunks = 8 >> params.token_bits;
      const int of_pass = lane / 4 >> params.token_bits;
      int row = first_token + min(place, tokens - 1);
      if (real && p.input_rows != nullptr) row = p.input_rows[row];
      const float* from = p.input + static_cast<long long>(row) * p.input_stride;
      const auto load = [&](int chunk, float(&x)[16]) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int col = chunk * kChunkCols + i / 2 * 32 + 8 * part + i % 2 * 4;
          const float4 four =
              col < cols ? *reinterpret_cast<const float4*>(from + col) : make_float4(0, 0, 0, 0);
          x[4 * i] = four.x, x[4 * i + 1] = four.y, x[4 * i + 2] = four.z, x[4 * i + 3] = four.w;
        }
      };
      float squared = 0;
      float x[16];
      int chunk = (rank * warps + warp) * pass_chunks + of_pass;
      load(chunk, x);
#pragma unroll 1
      for (; chunk - of_pass < m.chunks; chunk += preparers * pass_chunks) {
        float next[16];
        load(chunk + preparers * pass_chunks, next);
        if (has_norm) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int col =
                min(chunk, m.chunks - 1) * kChunkCols + i / 2 * 32 + 8 * part + i % 2 * 4;
            const float4 four = *reinterpret_cast<const float4*>(norm + col);
#pragma unroll
            for (int j = 0; j < 4; ++j) {
              float& value = x[4 * i + j];
              squared = fmaf(value, value, squared);
              value *= j == 0 ? four.x : j == 1 ? four.y : j == 2 ? four.z : four.w;
            }
          }
        }
        const int at = chunk * places + place;
        const unsigned to =
            layout.operands + chunk * places * OperandBytes(F) + place * 64 + part * 16;
        const int rows_apart = places * 64;
        if constexpr (IsQuantized(F)) {
          Integers made = MakeIntegers<F>(x);
          if (!kWide) made.sums[0] += made.sums[1];
#pragma unroll
          for (int group = 0; group < kGroups; ++group) {
            made.sums[group] += __shfl_xor_sync(0xffffffffu, made.sums[group], 1);
            made.sums[group] += __shfl_xor_sync(0xffffffffu, made.sums[group], 2);
          }
          const float unit = made.largest * (1.0f / kLargestQuantized);
          if (chunk < m.chunks) {
#pragma unroll 1
            for (int r = 0; r < share; ++r) {
              const unsigned base = RemoteAddress(shared, r);
              StoreAt(base + to, made.high);
              StoreAt(base + to + rows_apart, made.low);
              if (part == 0) {
                StoreAt(base + layout.units + at * 4, unit);
#pragma unroll
                for (int group = 0; group < kGroups; ++group) {
                  StoreAt(base + layout.sums + ((chunk * kGroups + group) * places + place) * 4,
                          unit * static_cast<float>(made.sums[group]));
                }
              }
            }
          }
        } else if (chunk < m.chunks) {
#pragma unroll
          for (int h = 0; h < 2; ++h) {
            unsigned high[4];
            unsigned low[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const float first = x[8 * h + 2 * i];
              const float second = x[8 * h + 2 * i + 1];
              high[i] = PackBf16(first, second);
              low[i] = PackBf16(first - __uint_as_float(high[i] << 16),
                                second - __uint_as_float(high[i] & 0xffff0000u));
            }
#pragma unroll 1
            for (int r = 0; r < share; ++r) {
              const unsigned base = RemoteAddress(shared, r) + to + h * rows_apart;
              StoreAt(base, make_uint4(high[0], high[1], high[2], high[3]));
              StoreAt(base + 2 * rows_apart, make_uint4(low[0], low[1], low[2], low[3]));
            }
          }
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) x[i] = next[i];
      }
      if (has_norm) {
        squared += __shfl_xor_sync(0xffffffffu, squared, 1);
        squared += __shfl_xor_sync(0xffffffffu, squared, 2);
#pragma unroll 1
        for (int offset = 4 * places; offset < 32; offset *= 2) {
          squared += __shfl_xor_sync(0xffffffffu, squared, offset);
        }
        if (part == 0 && of_pass == 0) {
#pragma unroll 1
          for (int r = 0; r < share; ++r) {
            StoreAt(RemoteAddress(squares + place * preparers + rank * warps + warp, r), squared);
          }
        }
      }
    }
    // A warp's copies are seen by all its lanes after the barrier.
    if (kWalk == FewWalk::kOnce && real) WaitForCopies<0>();
    meet();

    const auto factor_of = [&](int place) {
      if (!has_norm) return 1.0f;
      float sum = 0;
#pragma unroll 4
      for (int i = 0; i < preparers; ++i) sum += squares[place * preparers + i];
      return rsqrtf(fmaf(sum, params.inverse_cols, p.norm_eps));
    };
    float acc[4] = {};
    int slot = 0;
    const auto take = [&](int chunk) {
      if (kWalk != FewWalk::kOnce && real) {
        WaitForCopies<kRing - 1>();
        __syncwarp();
      }
      MultiplyChunk<F, kWide>(
          weights + slot * kUnit, bytes + layout.operands + chunk * places * OperandBytes(F),
          reinterpret_cast<const float*>(bytes + layout.units) + chunk * places,
          reinterpret_cast<const float*>(bytes + layout.sums) + chunk * kGroups * places, places,
          lane, m.scale_format, acc);
      if (kWalk != FewWalk::kOnce && real) {
        __syncwarp();
        copy_next(slot);
        CommitCopies();
      }
      ++slot;
      if (kWalk != FewWalk::kOnce && slot == kRing) slot = 0;
    };

    const int g = lane / 4;
    const int t = lane % 4;
    if constexpr (kStream) {
      if (!multiplies) return;
      const float factors[2] = {factor_of(2 * t & (places - 1)),
                                factor_of((2 * t + 1) & (places - 1))};
#pragma unroll 1
      for (int tile = first_tile; tile < m.tiles; tile += tile_step) {
#pragma unroll 1
        for (int chunk = 0; chunk < m.chunks; ++chunk) take(chunk);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int place = 2 * t + i % 2;
          const int row = (tile << row_bits) + g + i / 2 * 8;
          if (place < tokens && row < outputs.rows && (i < 2 || !outputs.gated)) {
            const float factor = factors[i % 2];
            outputs.Store(p, place, row, acc[i] * factor, acc[i | 2] * factor, outputs.Bias(p, row),
                          outputs.Old(p, place, row));
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[i] = 0;
      }
      return;
    }

    float* partial = reinterpret_cast<float*>(bytes + layout.partial);
    if (multiplies) {
#pragma unroll 1
      for (int i = 0; i < (real ? my_chunks : 1); ++i) take(first_chunk + i);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int place = 2 * t + i % 2;
        if (place < places) {
          partial[(warp * places + place) * kSumsPitch + g + i / 2 * 8] = acc[i];
        }
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int item = thread; item < items; item += blockDim.x) {
      if (!exists(item)) continue;
      const int place = place_of(item);
      const int row = row_of(item);
      float2 bias = first_bias;
      float old = first_old;
      if (item != thread) {
        bias = outputs.Bias(p, row);
        old = outputs.Old(p, place, row);
      }
      const float* from =
          partial +
          ((item >> (row_bits + params.token_bits)) * params.column_warps * places + place) *
              kSumsPitch +
          (item & ((1 << row_bits) - 1));
      float y = 0;
      float up = 0;
#pragma unroll 4
      for (int w = 0; w < params.column_warps; ++w) {
        y += from[w * places * kSumsPitch];
        if (outputs.gated) up += from[w * places * kSumsPitch + 8];
      }
      const float factor = factor_of(place);
      if (real) outputs.Store(p, place, row, y * factor, up * factor, bias, old);
    }
  }
  if constexpr (kRoutes) {
    RouteWhenLast(p, p.output, first_token, first_token + tokens, p.arrivals + blockIdx.y);
  }
}

int RoundedUp(int value, int by) { return (value + by - 1) / by; }

struct FewLauncher {
  FewParams params;
  int multiprocessors;
  cudaStream_t stream;
  int warps;  // of a block

  template <WeightFormat F, bool kWide>
  void CutMemory(int slots) {
    constexpr int kScaleBytes = !IsQuantized(F) ? 0 : kWide ? 256 : 64;
    const int chunks = params.linear.matrix.chunks;
    const int places = 1 << params.token_bits;
    FewLayout& layout = params.layout;
    int end = 0;
    const auto take = [&end](int bytes) {
      const int begin = end;
      end += RoundedUp(bytes, 16) * 16;
      return begin;
    };
    take(warps * slots * (LoadsOf(F) * 512 + kScaleBytes));
    layout.operands = take(chunks * places * OperandBytes(F));
    layout.units = take(IsQuantized(F) ? chunks * places * 4 : 0);
    layout.sums = take(IsQuantized(F) ? chunks * (kWide ? 2 : 1) * places * 4 : 0);
    const bool has_norm = params.linear.norm_weight != nullptr;
    layout.norm = take(has_norm ? chunks * kChunkCols * 4 : 0);
    layout.squares = take(has_norm ? places * params.share * warps * 4 : 0);
    layout.partial = take(warps * places * kSumsPitch * 4);
    layout.total = end;
  }

  template <WeightFormat F, bool kWide>
  bool Run() {
    constexpr int kUnit = LoadsOf(F) * 512 + (!IsQuantized(F) ? 0 : kWide ? 256 : 64);
    const PackedMatrix& m = params.linear.matrix;
    params.token_bits = 1;
    while (params.token_bits < 3 && 1 << params.token_bits < params.linear.tokens) {
      ++params.token_bits;
    }
    const int tiles_per_multiprocessor = RoundedUp(m.tiles, multiprocessors);
    const bool routes = params.linear.epilogue == LinearEpilogue::kRouter;
    // What large models have more tiles of than a block has room for.
    if (tiles_per_multiprocessor > kMostWarps / 2 && !routes) {
      params.column_warps = 1;
      params.warp_chunks = m.chunks;
      for (warps = kMostWarps; warps >= 4; warps /= 2) {
        CutMemory<F, kWide>(RingOf(F));
        if (params.layout.total <= DeviceSharedBytes()) break;
      }
      warps = std::max(warps, 4);
      params.row_warps = warps;
      // Every warp has the same number of tiles, or one fewer.
      const int rounds = RoundedUp(m.tiles, multiprocessors * warps);
      return Start<F, kWide, FewWalk::kStream>(RoundedUp(RoundedUp(m.tiles, rounds), warps));
    }
    params.row_warps = std::min(kMostWarps / 2, tiles_per_multiprocessor);
    // One block chooses experts without waiting for others.
    if (routes && m.tiles <= kMostRouterTiles) params.row_warps = m.tiles;
    const int column_warps = std::min(kMostWarps / params.row_warps, m.chunks);
    params.warp_chunks = RoundedUp(m.chunks, column_warps);
    params.column_warps = RoundedUp(m.chunks, params.warp_chunks);
    const int multiplying = params.row_warps * params.column_warps;
    const int passes = RoundedUp(m.chunks, 8 >> params.token_bits);
    warps = std::max(multiplying, std::min(kMostWarps, RoundedUp(passes, params.share)));
    const int blocks = RoundedUp(m.tiles, params.row_warps);
    if (routes) return Start<F, kWide, FewWalk::kLoop, true>(blocks);
    if (warps * params.warp_chunks * kUnit <= kMostWeightBytes) {
      return Start<F, kWide, FewWalk::kOnce>(blocks);
    }
    return Start<F, kWide, FewWalk::kLoop>(blocks);
  }

  template <WeightFormat F, bool kWide, FewWalk kWalk, bool kRoutes = false>
  bool Start(int blocks) {
    const auto kernel = FewLinearKernel<F, kWide, kWalk, kRoutes>;
    const int slots = kWalk == FewWalk::kOnce ? params.warp_chunks : RingOf(F);
    for (;; --params.token_bits) {
      CutMemory<F, kWide>(slots);
      if (params.layout.total <= DeviceSharedBytes()) break;
      if (params.token_bits == 1) return false;
    }
    if (params.layout.total > 48 * 1024) {
      // Always the same number, so that launches in a graph keep what they need.
      Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 DeviceSharedBytes()),
            "setting the shared memory of the matrix kernel of few tokens");
    }
    const int groups = RoundedUp(params.linear.tokens, 1 << params.token_bits);
    LaunchClusters("the matrix kernel of few tokens", kernel,
                   dim3(static_cast<unsigned>(RoundedUp(blocks, params.share) * params.share),
                        static_cast<unsigned>(groups)),
                   dim3(static_cast<unsigned>(warps * 32)),
                   dim3(static_cast<unsigned>(params.share)),
                   static_cast<size_t>(params.layout.total), stream, params);
    return true;
  }
};

}  // namespace

bool LaunchFewLinear(const LinearParams& linear, const LinearShape& shape, cudaStream_t stream) {
  const PackedMatrix& m = linear.matrix;
  FewLauncher launcher = {};
  launcher.params.linear = linear;
  launcher.params.share = 1;
  launcher.params.inverse_cols = 1.0f / static_cast<float>(m.cols);
  launcher.params.first_round = 0;
  launcher.params.triggers_early = TriggersEarly(m);
  launcher.multiprocessors = shape.multiprocessors;
  launcher.stream = stream;
  const bool wide = m.scale_format == ScaleFormat::kWide;
  switch (m.format) {
    case WeightFormat::kQ4:
      return wide ? launcher.Run<WeightFormat::kQ4, true>()
                  : launcher.Run<WeightFormat::kQ4, false>();
    case WeightFormat::kQ8:
      return wide ? launcher.Run<WeightFormat::kQ8, true>()
                  : launcher.Run<WeightFormat::kQ8, false>();
    case WeightFormat::kBf16:
      return launcher.Run<WeightFormat::kBf16, false>();
    case WeightFormat::kF16:
      return launcher.Run<WeightFormat::kF16, false>();
    case WeightFormat::kF32:
      return launcher.Run<WeightFormat::kF32, false>();
  }
  return false;
}

}  // namespace adder::cuda
