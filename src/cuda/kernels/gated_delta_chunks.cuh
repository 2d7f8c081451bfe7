// What the kernels of chunks of the gated delta rule share.
#pragma once

#include "cuda/kernels/gated_delta_chunks.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/linear_fragments.cuh"
#include "cuda/kernels/tensor_core.cuh"

namespace adder::cuda {

inline constexpr int kDeltaTokens = 64;  // of a chunk: half a piece
inline constexpr int kDeltaThreads = 128;

// What the kernels pass on about a chunk and head, in bf16, padded with zeros to kDeltaTokens
// tokens, kK elements of a key and `columns` of a value. See gated_delta_chunks.cu for the names.
template <int kK>
struct DeltaRecord {
  static constexpr int kQueries = 0;                                     // [tokens][kK]
  static constexpr int kKeys = kDeltaTokens * kK;                        // [tokens][kK]
  static constexpr int kPast = 2 * kDeltaTokens * kK;                    // [tokens][kK]
  static constexpr int kScores = 3 * kDeltaTokens * kK;                  // [tokens][tokens]
  static constexpr int kValues = kScores + kDeltaTokens * kDeltaTokens;  // [tokens][columns]

  static __host__ __device__ int State(int columns) {  // [kK][columns]
    return kValues + kDeltaTokens * columns;
  }
  static __host__ __device__ int Size(int columns) { return State(columns) + kK * columns; }
};

__host__ __device__ inline int DeltaColumns(int value_dim) { return (value_dim + 63) / 64 * 64; }

// Of rules whose chunks add something of their own to the state: what lies in tiles of sixteen rows
// by eight columns, each lane's four results of Mma behind each other.
inline constexpr int kAddedTile = 128;

// Phase (2) of keys of at most 64. `added` [chunks, heads, row tiles, column tiles, kAddedTile] is
// what each chunk adds besides.
void LaunchDeltaPassAdding(const GatedDeltaChunkParams& params, const float* added,
                           cudaStream_t stream);

// Phase (1).
void LaunchDeltaInputs(const GatedDeltaChunkParams& params, cudaStream_t stream);

// [rows][kColumns] from rows `stride` elements apart to a tile in the background, by all threads.
template <int kColumns>
__device__ __forceinline__ void CopyRows(unsigned tile, const __nv_bfloat16* from, int rows,
                                         int stride) {
  constexpr int kUnits = kColumns / 8;
  for (int i = threadIdx.x; i < rows * kUnits; i += kDeltaThreads) {
    const int r = i / kUnits;
    const int unit = i % kUnits;
    CopyAsync(tile + UnitOffset<kColumns>(r, unit), from + r * stride + unit * 8, true);
  }
}

// Two neighbouring results of Mma as bf16, at the even place `to`.
__device__ __forceinline__ void PutPair(__nv_bfloat16* to, float first, float second) {
  *reinterpret_cast<unsigned*>(to) = PackBf16(first, second);
}

}  // namespace adder::cuda
