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
inline constexpr int kWgmmaMostChunks = 64;

// How the work of one launch is cut up.
struct WgmmaGeometry {
  int tokens = 16;        // of a block: 16, 32, 64 or 128
  int column_groups = 1;  // warpgroups that share a block's columns
  int row_groups = 1;     // warpgroups with rows of their own; with column_groups at most
                          // MostWgmmaGroups
  int split = 1;          // blocks of a cluster that share the columns: 1, 2, 4 or 8
  int row_blocks = 1;     // clusters that share the rows; each takes every so many-th part of them
};

// More tokens need more registers.
constexpr int MostWgmmaGroups(int tokens) { return tokens > 64 ? 2 : 4; }
// Chunks of weights that each warp holds in shared memory.
constexpr int WgmmaRingOf(WeightFormat format) { return format == WeightFormat::kQ4 ? 6 : 4; }
// Floats from one token's sums to the next, `split` as in the geometry: lanes that write together
// hit different banks.
__host__ __device__ constexpr int WgmmaPitch(int split) { return kWgmmaRows / split + 4; }

// How a block's shared memory is cut. First the tokens: [chunk] of this block's columns, see
// TokensInShared in wgmma.cuh.
struct WgmmaLayout {
  int weights;  // offset; [warp][ring]
  int sums;     // offset; [row group][rank][column group][token][rows / split + 4] f32
  int squares;  // offset; [row group][rank][column group][token] f32
  int norm;     // offset; the norm's weight in bf16, in the order of operands
  int total;

  __host__ __device__ WgmmaLayout(int chunks, int unit, int ring, bool has_norm,
                                  const WgmmaGeometry& g) {
    const int most_chunks = (chunks + g.split - 1) / g.split;
    weights = most_chunks * g.tokens * kChunkCols * 2;
    sums = weights + g.column_groups * g.row_groups * 4 * ring * unit;
    const int parts = g.row_groups * g.split * g.column_groups * g.tokens;
    squares = sums + parts * WgmmaPitch(g.split) * 4;
    norm = squares + (has_norm ? parts * 4 : 0);
    total = norm + (has_norm ? most_chunks * kChunkCols * 2 : 0);
  }
};

// Whether the device is of compute capability 9.0 and this build has code for sm_90a.
bool DeviceHasWgmma();

// Whether LaunchWgmmaLinear can take this, and how: what was measured to be good for such sizes.
bool ChooseWgmmaGeometry(const LinearParams& params, int multiprocessors, int shared_bytes,
                         WgmmaGeometry* geometry);

// As LaunchBatchLinear, but reads no rows of rounded_input beyond the batch. Needs DeviceHasWgmma.
void LaunchWgmmaLinear(const LinearParams& params, const WgmmaGeometry& geometry,
                       cudaStream_t stream);

}  // namespace adder::cuda
