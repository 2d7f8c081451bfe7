// The matrix kernel for many tokens with bf16 activations: batched decoding.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// How the work of one launch is cut up.
struct BatchGeometry {
  int row_tiles = 1;     // tiles of rows per warp: 1, or 2 where CanTakeTwoTiles
  int token_tiles = 1;   // groups of eight tokens per block: 1, 2, 4 or 8
  int column_warps = 1;  // warps that share a block's columns; a power of two
  int row_warps = 1;     // warps that share a block's rows; a power of two
  int split = 1;         // blocks of a cluster that share the columns
};

// Wider weights fill the registers with one tile.
constexpr bool CanTakeTwoTiles(WeightFormat format, ScaleFormat scale_format) {
  return LoadsOf(format) <= 2 && scale_format != ScaleFormat::kWide;
}

struct BatchDevice {
  int multiprocessors = 132;
  bool has_clusters = true;
  int shared_bytes = 227 * 1024;  // that a block may have
};

// The geometry measured to be good for such sizes, made smaller where shared memory is short.
BatchGeometry ChooseBatchGeometry(const LinearParams& params, const BatchDevice& device);

// Stages that a block holds.
constexpr int RingOf(int token_tiles) { return token_tiles == 8 ? 3 : 4; }

// Bytes of one token's row in a stage: 64 more than a multiple of 128, so that the eight lanes of
// two tokens that read together hit different banks.
__host__ __device__ constexpr int PitchOf(int column_warps) {
  return column_warps * kChunkCols * 2 + 64;
}

// How a block's shared memory is cut: the ring, later the sums [column_warps][tokens][rows + 4];
// sums of squares [column_warps][tokens]; the norm's weight in bf16. A stage is the tokens' rows,
// then the weights [tile][column warp], `unit` bytes each.
struct BatchLayout {
  int stages;   // of the block of a cluster with the most columns: all cut alike
  int weights;  // offset in a stage
  int stage;    // bytes
  int squares;  // offset
  int norm;     // offset
  int total;

  __host__ __device__ BatchLayout(int chunks, int unit, bool has_norm, const BatchGeometry& g) {
    const int most_chunks = (chunks + g.split - 1) / g.split;
    stages = (most_chunks + g.column_warps - 1) / g.column_warps;
    const int tiles = g.row_warps * g.row_tiles;
    const int tokens = g.token_tiles * 8;
    weights = tokens * PitchOf(g.column_warps);
    stage = weights + tiles * g.column_warps * unit;
    const int ring = (RingOf(g.token_tiles) < stages ? RingOf(g.token_tiles) : stages) * stage;
    const int sums = g.column_warps * tokens * (tiles * kTileRows + 4) * 4;
    squares = ring > sums ? ring : sums;
    norm = squares + (has_norm ? g.column_warps * tokens * 4 : 0);
    total = norm + (has_norm ? most_chunks * kChunkCols * 2 : 0);
  }
};

// As LaunchLinear, reading params.rounded_input instead of params.input, and no input_rows. Rows of
// it up to the next multiple of kBatchRows are read, whatever they hold.
inline constexpr int kBatchRows = 64;
void LaunchBatchLinear(const LinearParams& params, const BatchGeometry& geometry,
                       cudaStream_t stream);

// output[i] = input[input_rows[i]], or input[i] without input_rows, rounded to bf16, for `rows`
// rows of `width` values.
void LaunchRound(const float* input, int input_stride, const int* input_rows, int rows, int width,
                 uint16_t* output, int output_stride, cudaStream_t stream);

}  // namespace adder::cuda
