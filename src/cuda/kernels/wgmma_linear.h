// The matrix kernel of larger batches on GPUs of compute capability 9.0; batch_linear.h has that of
// all others.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// With fewer, most of an instruction would be empty.
inline constexpr int kLeastWgmmaTokens = 9;
// Rows of a warpgroup's products.
inline constexpr int kWgmmaRows = 64;

// How the work of one launch is cut up: numbers are powers of two. A cluster takes row_groups * 64
// rows and `tokens` tokens.
struct WgmmaGeometry {
  int tokens = 16;        // of a block: 16, 32 or 64
  int column_groups = 1;  // warpgroups that share a block's columns
  int row_groups = 1;     // warpgroups with rows of their own
  int split = 1;  // blocks of a cluster that share the columns: up to 8; 4 of gated products
};

// Of a block: column_groups * row_groups.
inline constexpr int kMostWgmmaGroups = 4;
// Chunks of a block's columns, and of those the most that one warpgroup multiplies.
inline constexpr int kWgmmaMostChunks = 24;
inline constexpr int kWgmmaMostHeld = 6;
// Of 64 rows and a chunk of columns in bf16.
inline constexpr int kWgmmaWeightBytes = kWgmmaRows * kChunkCols * 2;
// Floats from one row's sums to the next: those of eight rows are read from different banks.
__host__ __device__ constexpr int WgmmaPitch(int tokens) { return tokens + 4; }

// How a block's shared memory is cut. First the tokens: [chunk] of this block's columns, see
// OperandInShared in wgmma.cuh.
struct WgmmaLayout {
  int held;     // chunks of weights that a warpgroup multiplies
  int weights;  // offset; [warpgroup][held] of 64 rows in bf16, see OperandInShared
  int packed;   // offset; [warp][held] of packed weights
  int sums;     // offset, in the place of packed weights; [row group][rank][column group]
                // [rows / split][WgmmaPitch] f32
  int squares;  // offset; [rank][row group][column group][token] f32
  int norm;     // offset; the norm's weight in bf16
  int total;

  WgmmaLayout(const PackedMatrix& m, bool has_norm, const WgmmaGeometry& g) {
    const int chunks = (m.chunks + g.split - 1) / g.split;
    const int groups = g.row_groups * g.column_groups;
    const int unit = LoadsOf(m.format) * 512 + ScaleBytesPerChunk(m.scale_format);
    held = (chunks + g.column_groups - 1) / g.column_groups;
    weights = chunks * g.tokens * kChunkCols * 2;
    packed = weights + groups * held * kWgmmaWeightBytes;
    sums = packed;
    const int packed_bytes = groups * 4 * held * unit;
    const int sums_bytes = groups * kWgmmaRows * WgmmaPitch(g.tokens) * 4;
    squares = packed + (packed_bytes > sums_bytes ? packed_bytes : sums_bytes);
    norm = squares + (has_norm ? groups * g.split * g.tokens * 4 : 0);
    total = norm + (has_norm ? chunks * kChunkCols * 2 : 0);
  }
};

// Whether the device is of compute capability 9.0 and this build has code for sm_90a.
bool DeviceHasWgmma();

// Whether LaunchWgmmaLinear can take this so. Not every matrix has columns few enough to be held.
bool WgmmaTakes(const LinearParams& params, const WgmmaGeometry& geometry, int shared_bytes);
// Whether LaunchWgmmaLinear was measured to be faster at such sizes than LaunchBatchLinear, and
// how.
bool ChooseWgmmaGeometry(const LinearParams& params, int multiprocessors, int shared_bytes,
                         WgmmaGeometry* geometry);

// As LaunchBatchLinear, but reads no rows of rounded_input beyond the batch. Needs DeviceHasWgmma
// and WgmmaTakes.
void LaunchWgmmaLinear(const LinearParams& params, const WgmmaGeometry& geometry,
                       cudaStream_t stream);

}  // namespace adder::cuda
