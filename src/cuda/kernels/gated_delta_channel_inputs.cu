// Inputs of chunks of the gated delta rule with a decay per channel (see
// gated_delta_chunk_inputs.cu for the phases).
//
// Decays of two tokens stand within the dot product of their rows. Dot products are taken in blocks
// of sixteen tokens: for a row block behind a column block both are decayed to the border in front
// of the rows, one forwards and one backwards, so that every exponent is at most 0, and tensor
// cores multiply them. In a block on the diagonal every product has an exponential of its own: a
// pair of tokens per thread.
#include <cuda_runtime.h>

#include "cuda/kernels/gated_delta_chunk_inputs.cuh"

namespace adder::cuda {
namespace {

constexpr int kThreads = kDeltaThreads;
constexpr int kTokens = kDeltaTokens;
constexpr int kBlock = 16;  // tokens
constexpr int kBlockPairs = kBlock * (kBlock + 1) / 2;

// Dynamic shared memory.
template <int kK>
struct ChannelLayout {
  static constexpr int kTileBytes = kTokens * kK * 2;
  static constexpr int kQ = 0;              // tile [tokens][kK]; later k with the decay before it
  static constexpr int kKeys = kTileBytes;  // tile [tokens][kK]
  static constexpr int kSystem = 2 * kTileBytes;  // f32 [tokens][kSystemStride], by column
  static constexpr int kOfValues = kSystem;       // after it is solved: tile [tokens][tokens]
  // f32 [tokens][tokens]; before that, of a block of rows: keys [kBlock][kK], queries, and the keys
  // of all columns before.
  static constexpr int kInverse = kSystem + kTokens * kSystemStride * 4;
  static constexpr int kBlockKeys = kInverse;
  static constexpr int kBlockQueries = kBlockKeys + kBlock * kK * 2;
  static constexpr int kColumns = kBlockQueries + kBlock * kK * 2;
  static constexpr int kInverseBytes = kTokens * kTokens * 4 > (kTokens + kBlock) * kK * 2
                                           ? kTokens* kTokens * 4
                                           : (kTokens + kBlock) * kK * 2;
  // Sums of logarithms of decay, f32 [tokens][kSumStride]; later v, tiles [tokens][64].
  static constexpr int kSums = kInverse + kInverseBytes;
  static constexpr int kSumStride = kK + 4;

  static size_t Bytes(int columns) {
    const int sums = kTokens * kSumStride * 4;
    const int values = kTokens * columns * 2;
    return static_cast<size_t>(kSums + (sums > values ? sums : values));
  }
};

__device__ __forceinline__ void LoadEight(const float* from, float (&x)[8]) {
  const float4 low = *reinterpret_cast<const float4*>(from);
  const float4 high = *reinterpret_cast<const float4*>(from + 4);
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// Eight bf16 values times `factor` and 2^(to - from) each.
__device__ __forceinline__ uint4 Decayed(uint4 words, float factor, const float (&to)[8],
                                         const float (&from)[8]) {
  float x[8];
  Unpack(words, x);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] *= factor * Exp2(to[i] - from[i]);
  return make_uint4(PackBf16(x[0], x[1]), PackBf16(x[2], x[3]), PackBf16(x[4], x[5]),
                    PackBf16(x[6], x[7]));
}

// A thread per channel. Channels that are not there keep what they have.
template <int kK>
__device__ __forceinline__ void PutChannelSums(const GatedDeltaParams& p, const DeltaPlace& place,
                                               float* sums) {
  const int channel = static_cast<int>(threadIdx.x);
  if (channel >= kK) return;
  const bool inside = channel < p.key_dim;
  const int at = place.head * p.key_dim + channel;
  const float rate = p.a[place.head] * kLog2E;
  const float bias = inside ? p.dt_bias[at] : 0.0f;
  const float* inputs = p.decay + static_cast<long long>(place.first_row) * p.decay_stride + at;
  float sum = 0;
#pragma unroll 8
  for (int token = 0; token < kTokens; ++token) {
    if (inside && token < place.tokens) {
      const float x = inputs[static_cast<long long>(token) * p.decay_stride] + bias;
      sum = fmaf(rate, x > 20.0f ? x : __logf(1.0f + __expf(x)), sum);
    }
    sums[token * ChannelLayout<kK>::kSumStride + channel] = sum;
  }
}

__device__ __forceinline__ void PutScore(__nv_bfloat16* scores, int row, int column, float score) {
  scores[row * kTokens + column] = __float2bfloat16_rn(score);
}

// Dot products of a warp's block on the diagonal.
template <int kK>
__device__ __forceinline__ void PutDiagonal(const unsigned char* shared, const DeltaRows& rows,
                                            float* system, __nv_bfloat16* scores) {
  using Layout = ChannelLayout<kK>;
  const int first = static_cast<int>(threadIdx.x) / 32 * kBlock;
  const float* sums = reinterpret_cast<const float*>(shared + Layout::kSums);
#pragma unroll 1
  for (int pair = static_cast<int>(threadIdx.x) % 32; pair < kBlockPairs; pair += 32) {
    int i = 0;
    while ((i + 1) * (i + 2) / 2 <= pair) ++i;
    const int row = first + i;
    const int column = first + pair - i * (i + 1) / 2;
    float k_product = 0;
    float q_product = 0;
#pragma unroll 2
    for (int unit = 0; unit < kK / 8; ++unit) {
      const auto load = [&](int tile, int of_row, float(&x)[8]) {
        Unpack(*reinterpret_cast<const uint4*>(shared + tile + UnitOffset<kK>(of_row, unit)), x);
      };
      float of_column[8];
      float from[8];
      float x[8];
      load(Layout::kKeys, column, of_column);
      LoadEight(sums + row * Layout::kSumStride + unit * 8, x);
      LoadEight(sums + column * Layout::kSumStride + unit * 8, from);
#pragma unroll
      for (int n = 0; n < 8; ++n) of_column[n] *= Exp2(x[n] - from[n]);
      load(Layout::kKeys, row, x);
#pragma unroll
      for (int n = 0; n < 8; ++n) k_product = fmaf(of_column[n], x[n], k_product);
      load(Layout::kQ, row, x);
#pragma unroll
      for (int n = 0; n < 8; ++n) q_product = fmaf(of_column[n], x[n], q_product);
    }
    PutScore(scores, row, column, rows.queries[row] * rows.keys[column] * q_product);
    if (column == row) continue;
    PutScore(scores, column, row, 0);
    system[column * kSystemStride + row] =
        rows.betas[row] * rows.keys[row] * rows.keys[column] * k_product;
  }
}

// Dot products of a block of rows with all columns before it: sixteen columns per warp.
template <int kK>
__device__ __forceinline__ void PutBefore(unsigned char* shared, int block, const DeltaRows& rows,
                                          float* system, __nv_bfloat16* scores) {
  using Layout = ChannelLayout<kK>;
  constexpr int kUnits = kK / 8;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const float* sums = reinterpret_cast<const float*>(shared + Layout::kSums);
  const float* border = sums + (block * kBlock - 1) * Layout::kSumStride;
  for (int i = threadIdx.x; i < (2 + block) * kBlock * kUnits; i += kThreads) {
    const int r = i / kUnits;
    const int unit = i % kUnits;
    const bool is_row = r < 2 * kBlock;
    const int token = is_row ? block * kBlock + r % kBlock : r - 2 * kBlock;
    const int from_tile = is_row && r >= kBlock ? Layout::kQ : Layout::kKeys;
    float own[8];
    float other[8];
    LoadEight(sums + token * Layout::kSumStride + unit * 8, own);
    LoadEight(border + unit * 8, other);
    const uint4 words =
        *reinterpret_cast<const uint4*>(shared + from_tile + UnitOffset<kK>(token, unit));
    const int to = !is_row      ? Layout::kColumns + UnitOffset<kK>(token, unit)
                   : r < kBlock ? Layout::kBlockKeys + UnitOffset<kK>(r, unit)
                                : Layout::kBlockQueries + UnitOffset<kK>(r - kBlock, unit);
    *reinterpret_cast<uint4*>(shared + to) =
        is_row ? Decayed(words, 1, own, other) : Decayed(words, 1, other, own);
  }
  __syncthreads();
  if (warp < block) {
    const unsigned tiles = SharedAddress(shared);
    float k_products[2][4] = {};
    float q_products[2][4] = {};
#pragma unroll
    for (int k = 0; k < kK / 16; ++k) {
      unsigned of_keys[4];
      unsigned of_queries[4];
      unsigned b[4];
      LoadA<kK>(of_keys, tiles + Layout::kBlockKeys, 0, 2 * k, lane);
      LoadA<kK>(of_queries, tiles + Layout::kBlockQueries, 0, 2 * k, lane);
      LoadB<kK>(b, tiles + Layout::kColumns, warp * kBlock, 2 * k, lane);
      MmaPair(k_products[0], k_products[1], of_keys, b);
      MmaPair(q_products[0], q_products[1], of_queries, b);
    }
#pragma unroll
    for (int n = 0; n < 2; ++n) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = block * kBlock + lane / 4 + 8 * r;
        const int column = warp * kBlock + n * 8 + lane % 4 * 2;
        float of_columns[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          of_columns[i] = rows.keys[column + i];
          system[(column + i) * kSystemStride + row] =
              rows.betas[row] * rows.keys[row] * of_columns[i] * k_products[n][2 * r + i];
        }
        PutPair(scores + row * kTokens + column,
                rows.queries[row] * of_columns[0] * q_products[n][2 * r],
                rows.queries[row] * of_columns[1] * q_products[n][2 * r + 1]);
      }
    }
  }
  __syncthreads();
}

// Stores queries and keys; k, with the decay before it, takes the place of q.
template <int kK>
__device__ __forceinline__ void StoreDecayed(unsigned char* shared, const DeltaRows& rows,
                                             __nv_bfloat16* queries, __nv_bfloat16* keys) {
  using Layout = ChannelLayout<kK>;
  constexpr int kUnits = kK / 8;
  const float none[8] = {};
  const float* sums = reinterpret_cast<const float*>(shared + Layout::kSums);
  for (int i = threadIdx.x; i < kTokens * kUnits; i += kThreads) {
    const int row = i / kUnits;
    const int unit = i % kUnits;
    float own[8];
    float last[8];
    LoadEight(sums + row * Layout::kSumStride + unit * 8, own);
    LoadEight(sums + (kTokens - 1) * Layout::kSumStride + unit * 8, last);
    const int offset = UnitOffset<kK>(row, unit);
    uint4* q = reinterpret_cast<uint4*>(shared + Layout::kQ + offset);
    const uint4 k = *reinterpret_cast<const uint4*>(shared + Layout::kKeys + offset);
    *reinterpret_cast<uint4*>(queries + row * kK + unit * 8) =
        Decayed(*q, rows.queries[row], own, none);
    *reinterpret_cast<uint4*>(keys + row * kK + unit * 8) = Decayed(k, rows.keys[row], last, own);
    *q = Decayed(k, rows.keys[row], own, none);
  }
}

template <int kK>
__global__ void __launch_bounds__(kThreads)
    ChannelInputKernel(const __grid_constant__ GatedDeltaChunkParams c, const int columns) {
  using Layout = ChannelLayout<kK>;
  using Record = DeltaRecord<kK>;
  const GatedDeltaParams& p = c.mixer;
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ DeltaRows rows;
  const unsigned tiles = SharedAddress(shared);
  float* system = reinterpret_cast<float*>(shared + Layout::kSystem);
  float* inverse = reinterpret_cast<float*>(shared + Layout::kInverse);
  float* sums = reinterpret_cast<float*>(shared + Layout::kSums);
  const int thread = static_cast<int>(threadIdx.x);
  PdlWait();
  PdlTrigger();
  const DeltaPlace place = FindDeltaPlace(c.pieces, c.mixer.value_heads);
  if (place.tokens <= 0) return;
  __nv_bfloat16* record = c.records + place.index * Record::Size(columns);
  CopyKeys<kK>(c, place, tiles + Layout::kQ, tiles + Layout::kKeys);
  CopyCommit();
  PutChannelSums<kK>(p, place, sums);
  if (thread < kTokens) {
    rows.betas[thread] =
        thread < place.tokens ? BetaOf(p, place.first_row + thread, place.head) : 0.0f;
  }
  CopyWait<0>();
  __syncthreads();
  PutLengths<kK>(p, shared + Layout::kQ, shared + Layout::kKeys, rows);
  if (thread < kK) {
    c.keeps[place.index * kMostChunkKeyDim + thread] =
        Exp2(sums[(kTokens - 1) * Layout::kSumStride + thread]);
  }
  __syncthreads();
  PutDiagonal<kK>(shared, rows, system, record + Record::kScores);
#pragma unroll 1
  for (int block = 1; block < kTokens / kBlock; ++block) {
    PutBefore<kK>(shared, block, rows, system, record + Record::kScores);
  }
  StoreDecayed<kK>(shared, rows, record + Record::kQueries, record + Record::kKeys);
  __syncthreads();
  CopyValues(c, place, tiles + Layout::kSums, columns);
  CopyCommit();
  if (thread < kTokens) Solve(system, inverse, thread);
  CopyWait<0>();
  __syncthreads();
  PutTile(inverse, shared + Layout::kOfValues, [&](int token) { return rows.betas[token]; });
  __syncthreads();
  MultiplyInverse<kK, Record>(tiles + Layout::kOfValues, tiles + Layout::kSums,
                              tiles + Layout::kOfValues, tiles + Layout::kQ, columns, record);
}

template <int kK>
void LaunchKey(const GatedDeltaChunkParams& params, cudaStream_t stream) {
  const int columns = DeltaColumns(params.mixer.value_dim);
  LaunchDeltaInputKernel(ChannelInputKernel<kK>, ChannelLayout<kK>::Bytes(columns), kThreads,
                         params, columns, stream);
}

}  // namespace

void LaunchDeltaChannelInputs(const GatedDeltaChunkParams& params, cudaStream_t stream) {
  if (params.mixer.key_dim <= 64) return LaunchKey<64>(params, stream);
  LaunchKey<kMostChunkKeyDim>(params, stream);
}

}  // namespace adder::cuda
