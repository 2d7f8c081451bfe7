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

// How the work of one launch is cut up; all but row_blocks powers of two.
struct WgmmaGeometry {
  int tokens = 16;        // of a block: 16, 32 or 64
  int column_groups = 1;  // warpgroups that share a block's columns
  int row_groups = 1;     // warpgroups with rows of their own
  int split = 1;          // blocks of a cluster that share the columns: 1, 2, 4 or 8
  int row_blocks = 1;     // clusters that share the rows; each takes every so many-th part of them
};

// Of a block: column_groups * row_groups.
inline constexpr int kMostWgmmaGroups = 4;
// The most chunks of weights that each warp holds in shared memory.
constexpr int WgmmaRingOf(WeightFormat format) { return format == WeightFormat::kQ4 ? 6 : 4; }
// Floats from one row's sums to the next: those of eight rows are read from different banks.
__host__ __device__ constexpr int WgmmaPitch(int tokens) { return tokens + 4; }

// Of 64 rows and a chunk of columns in bf16.
inline constexpr int kWgmmaWeightBytes = kWgmmaRows * kChunkCols * 2;
// Chunks of weights in bf16 that a warpgroup holds where not all of them fit.
inline constexpr int kWgmmaSlots = 4;
// Most chunks that are all held.
inline constexpr int kWgmmaMostHeld = 6;

// How a block's shared memory is cut. First the tokens: [chunk] of this block's columns, see
// OperandInShared in wgmma.cuh.
struct WgmmaLayout {
  int steps;    // groups of rows that a block takes
  int ring;     // chunks of packed weights that a warp holds
  int slots;    // chunks of weights in bf16 that a warpgroup holds
  int weights;  // offset; [warpgroup][slot] of 64 rows in bf16, see OperandInShared
  int packed;   // offset; [warp][ring]; where all are turned at once, in the place of sums
  int sums;     // offset; [row group][rank][column group][rows / split][WgmmaPitch] f32
  int squares;  // offset; [rank][row group][column group][token] f32
  int norm;     // offset; the norm's weight in bf16
  int total;

  WgmmaLayout(const PackedMatrix& m, bool has_norm, const WgmmaGeometry& g) {
    const int step_tiles = kWgmmaRows / kTileRows * g.row_groups * g.row_blocks;
    steps = (m.tiles + step_tiles - 1) / step_tiles;
    const int chunks = (m.chunks + g.split - 1) / g.split;
    const int units = (chunks + g.column_groups - 1) / g.column_groups * steps;
    ring = units < WgmmaRingOf(m.format) ? units : WgmmaRingOf(m.format);
    slots = units <= kWgmmaMostHeld ? units : kWgmmaSlots;
    const int unit = LoadsOf(m.format) * 512 + ScaleBytesPerChunk(m.scale_format);
    const int groups = g.row_groups * g.column_groups;
    weights = chunks * g.tokens * kChunkCols * 2;
    packed = weights + groups * slots * kWgmmaWeightBytes;
    const int packed_end = packed + groups * 4 * ring * unit;
    sums = slots == units && units <= ring ? packed : packed_end;
    const int sums_end = sums + groups * kWgmmaRows * WgmmaPitch(g.tokens) * 4;
    squares = sums_end > packed_end ? sums_end : packed_end;
    norm = squares + (has_norm ? groups * g.split * g.tokens * 4 : 0);
    total = norm + (has_norm ? chunks * kChunkCols * 2 : 0);
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
