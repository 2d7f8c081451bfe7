// What the kernels of inputs of a chunk of the gated delta rule share. The phases are those of
// gated_delta_chunk_inputs.cu.
#pragma once

#include "cuda/kernels/gated_delta_chunks.cuh"

namespace adder::cuda {

// Phases (1) to (5) with a decay per channel.
void LaunchDeltaChannelInputs(const GatedDeltaChunkParams& params, cudaStream_t stream);

inline constexpr float kLog2E = 1.44269504f;
inline constexpr int kSystemStride = kDeltaTokens + 4;

// Of each token of a chunk. Tokens that are not there have beta 0 and decay 1.
struct DeltaRows {
  float sums[kDeltaTokens];  // of the logarithms of decay to base 2, up to and including the token
  float betas[kDeltaTokens];
  float queries[kDeltaTokens];  // query_scale / |q|
  float keys[kDeltaTokens];     // 1 / |k|
};

// Where a block works.
struct DeltaPlace {
  Piece piece;
  int first_row;  // of the chunk
  int tokens;     // at most 0: there is no such chunk
  int head;
  long long index;  // of the chunk and head
};
__device__ __forceinline__ DeltaPlace FindDeltaPlace(const Piece* pieces, int heads) {
  const int chunk = static_cast<int>(blockIdx.y);
  const int first = chunk % 2 * kDeltaTokens;
  DeltaPlace place;
  place.piece = pieces[chunk / 2];
  place.first_row = place.piece.row + first;
  place.tokens = min(kDeltaTokens, place.piece.tokens - first);
  place.head = static_cast<int>(blockIdx.x);
  place.index = static_cast<long long>(chunk) * heads + place.head;
  return place;
}

__device__ __forceinline__ float BetaOf(const GatedDeltaParams& p, long long row, int head) {
  return __fdividef(p.beta_scale, 1.0f + __expf(-p.beta[row * p.beta_stride + head]));
}

__device__ __forceinline__ void Unpack(uint4 words, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned both = Component(words, i);
    x[2 * i] = __uint_as_float(both << 16);
    x[2 * i + 1] = __uint_as_float(both & 0xffff0000u);
  }
}

// Lengths: a thread per row of q or of k.
template <int kK>
__device__ __forceinline__ void PutLengths(const GatedDeltaParams& p, const unsigned char* q_tile,
                                           const unsigned char* k_tile, DeltaRows& rows) {
  const int row = static_cast<int>(threadIdx.x) % kDeltaTokens;
  const bool is_key = static_cast<int>(threadIdx.x) >= kDeltaTokens;
  const unsigned char* tile = is_key ? k_tile : q_tile;
  float squares = p.qk_eps;
#pragma unroll 4
  for (int unit = 0; unit < kK / 8; ++unit) {
    float x[8];
    Unpack(*reinterpret_cast<const uint4*>(tile + UnitOffset<kK>(row, unit)), x);
#pragma unroll
    for (int i = 0; i < 8; ++i) squares = fmaf(x[i], x[i], squares);
  }
  if (is_key) {
    rows.keys[row] = rsqrtf(squares);
  } else {
    rows.queries[row] = p.query_scale * rsqrtf(squares);
  }
}

// Phase (3), for one column: x = (1 + A)^-1 e_column. system: A by column.
__device__ __forceinline__ void Solve(const float* system, float* inverse, int column) {
#pragma unroll 1
  for (int block = 0; block < kDeltaTokens; block += 16) {
    float x[16];
#pragma unroll
    for (int r = 0; r < 16; ++r) x[r] = block + r == column ? 1.0f : 0.0f;
#pragma unroll 2
    for (int j = 0; j < block; ++j) {
      const float solved = inverse[j * kDeltaTokens + column];
      const float4* of_column = reinterpret_cast<const float4*>(system + j * kSystemStride + block);
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float4 four = of_column[r];
        x[4 * r] = fmaf(-four.x, solved, x[4 * r]);
        x[4 * r + 1] = fmaf(-four.y, solved, x[4 * r + 1]);
        x[4 * r + 2] = fmaf(-four.z, solved, x[4 * r + 2]);
        x[4 * r + 3] = fmaf(-four.w, solved, x[4 * r + 3]);
      }
    }
#pragma unroll
    for (int j = 0; j < 16; ++j) {
#pragma unroll
      for (int r = j + 1; r < 16; ++r) {
        x[r] = fmaf(-system[(block + j) * kSystemStride + block + r], x[j], x[r]);
      }
      inverse[(block + j) * kDeltaTokens + column] = x[j];
    }
  }
}

// Phase (4): the inverse with each column times a factor, as a tile.
template <class Factor>
__device__ __forceinline__ void PutTile(const float* inverse, unsigned char* tile, Factor factor) {
  const int column = static_cast<int>(threadIdx.x) % (kDeltaTokens / 2) * 2;
  const float first = factor(column);
  const float second = factor(column + 1);
  for (int row = static_cast<int>(threadIdx.x) / (kDeltaTokens / 2); row < kDeltaTokens;
       row += 2 * kDeltaThreads / kDeltaTokens) {
    const float2 two = *reinterpret_cast<const float2*>(inverse + row * kDeltaTokens + column);
    *reinterpret_cast<unsigned*>(tile + UnitOffset<kDeltaTokens>(row, column / 8) +
                                 column % 8 * 2) = PackBf16(two.x * first, two.y * second);
  }
}

// Phase (5): rows of a triangular tile times 64 columns of another, to rows `stride` apart.
template <int kColumns>
__device__ __forceinline__ void MultiplyTile(unsigned triangle, unsigned tile, int first_unit,
                                             __nv_bfloat16* to, int stride) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  float sums[8][4] = {};
#pragma unroll
  for (int k = 0; k < kDeltaTokens / 16; ++k) {
    if (k > warp) break;
    unsigned a[4];
    LoadA<kDeltaTokens>(a, triangle, warp * 16, 2 * k, lane);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      unsigned b[4];
      LoadBTransposed<kColumns>(b, tile, k * 16, first_unit + 2 * n, lane);
      MmaPair(sums[2 * n], sums[2 * n + 1], a, b);
    }
  }
  __nv_bfloat16* out = to + (warp * 16 + lane / 4) * stride + lane % 4 * 2;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    PutPair(out + n * 8, sums[n][0], sums[n][1]);
    PutPair(out + 8 * stride + n * 8, sums[n][2], sums[n][3]);
  }
}

// Rows of q, k or v to a tile [tokens][kColumns] in the background: `count` columns from `column`
// on; columns and rows that are not there become zeros.
template <int kColumns>
__device__ __forceinline__ void CopyInputs(const GatedDeltaChunkParams& c, const DeltaPlace& place,
                                           unsigned tile, int column, int count) {
  const __nv_bfloat16* rows =
      c.convolved + static_cast<long long>(place.first_row) * c.convolved_stride;
  constexpr int kUnits = kColumns / 8;
  for (int i = threadIdx.x; i < kDeltaTokens * kUnits; i += kDeltaThreads) {
    const int row = i / kUnits;
    const int unit = i % kUnits;
    const bool valid = row < place.tokens && unit * 8 < count;
    const __nv_bfloat16* from =
        rows + static_cast<long long>(row) * c.convolved_stride + column + unit * 8;
    CopyAsync(tile + UnitOffset<kColumns>(row, unit), valid ? from : rows, valid);
  }
}
template <int kK>
__device__ __forceinline__ void CopyKeys(const GatedDeltaChunkParams& c, const DeltaPlace& place,
                                         unsigned q_tile, unsigned k_tile) {
  const GatedDeltaParams& p = c.mixer;
  const int column = place.head / (p.value_heads / p.key_heads) * p.key_dim;
  CopyInputs<kK>(c, place, q_tile, column, p.key_dim);
  CopyInputs<kK>(c, place, k_tile, p.keys() + column, p.key_dim);
}
// To tiles of 64 columns each.
__device__ __forceinline__ void CopyValues(const GatedDeltaChunkParams& c, const DeltaPlace& place,
                                           unsigned tiles, int columns) {
  const GatedDeltaParams& p = c.mixer;
  const int first = 2 * p.keys() + place.head * p.value_dim;
  for (int column = 0; column < columns; column += 64) {
    CopyInputs<64>(c, place, tiles + column * kDeltaTokens * 2, first + column,
                   p.value_dim - column);
  }
}

// The end of phase (5): the record's values, from the tile of values, and past, from that of keys.
template <int kK, class Record>
__device__ __forceinline__ void MultiplyInverse(unsigned of_values, unsigned values,
                                                unsigned of_keys, unsigned keys, int columns,
                                                __nv_bfloat16* record) {
  for (int slice = 0; slice < columns / 64; ++slice) {
    MultiplyTile<64>(of_values, values + slice * kDeltaTokens * 128, 0,
                     record + Record::kValues + slice * 64, columns);
  }
#pragma unroll 1
  for (int slice = 0; slice < kK / 64; ++slice) {
    MultiplyTile<kK>(of_keys, keys, slice * 8, record + Record::kPast + slice * 64, kK);
  }
}

// A block of `threads` per value head and chunk.
inline void LaunchDeltaInputKernel(void (*kernel)(GatedDeltaChunkParams, int), size_t shared_bytes,
                                   int threads, const GatedDeltaChunkParams& params, int columns,
                                   cudaStream_t stream) {
  AllowSharedMemory(kernel, shared_bytes);
  Launch("the kernel of inputs of the delta rule", kernel,
         dim3(static_cast<unsigned>(params.mixer.value_heads),
              static_cast<unsigned>(2 * params.piece_count)),
         dim3(static_cast<unsigned>(threads)), shared_bytes, stream, params, columns);
}

}  // namespace adder::cuda
