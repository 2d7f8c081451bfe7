// Matrices of larger batches on GPUs of compute capability 9.0, from weights unpacked to bf16: for
// so many tokens, reading four times as many bytes takes less time than unpacking them in every
// launch. batch_linear.h has the kernel for packed weights.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// With fewer, kernels for packed weights are faster.
inline constexpr int kLeastUnpackedTokens = 9;
// Rows of a block.
inline constexpr int kUnpackedRows = 64;
inline constexpr int kMostUnpackedStages = 8;

// Bytes of a matrix unpacked: [64 rows][64 columns] bf16 tiles, of each 64 rows one column of tiles
// after the other, in the order in which products take them from shared memory (see OperandInShared
// in wgmma.cuh); rows and columns beyond the matrix are zero. Rows are in the order of the packed
// matrix: gate and up may be interleaved.
size_t UnpackedBytes(const PackedMatrix& matrix);
// Whether there is a kernel for such a matrix: 4 or 8-bit or bf16, of at least 128 columns.
bool CanUnpack(const PackedMatrix& matrix);
// Writes all weights of one matrix, times those of the norm of its input (`norm_weight` [cols] f32;
// null: none).
void LaunchUnpackTiles(const PackedMatrix& matrix, const float* norm_weight, uint16_t* unpacked,
                       cudaStream_t stream);

// How the work of one launch is cut up.
struct UnpackedGeometry {
  int tokens = 64;  // of a block: 16, 32, 64 or 128
  int groups = 2;   // warpgroups that take a block's chunks of columns in turns: 2 or 4
  int split = 1;    // blocks of a cluster that share the columns: 1, 2, 4 or 8
  int stages = 3;   // of a block's ring: 2 to 8
  int blocks = 0;   // per token block at most, which then take rows in turns; 0: one per 64 rows
};

// How a block's shared memory is cut: offsets. A stage is a chunk of columns for each warpgroup.
struct UnpackedLayout {
  int weights;  // [stage][warpgroup] of 64 rows and a chunk; 0 is [stage][warpgroup] of tokens
  int sums;     // [pair of warpgroups][token][row] f32; in the place of tokens where `blocks` is 0
  int squares;  // [warpgroup][token] f32
  int total;

  UnpackedLayout(bool has_norm, const UnpackedGeometry& g);
};

// Whether the device is of compute capability 9.0 and this build has code for sm_90a.
bool DeviceHasWgmma();

// Whether LaunchUnpackedLinear can take this so.
bool UnpackedTakes(const LinearParams& params, const UnpackedGeometry& geometry, int shared_bytes);
// The best way that was measured; false where there is none.
bool ChooseUnpackedGeometry(const LinearParams& params, int multiprocessors, int shared_bytes,
                            UnpackedGeometry* geometry);

// As LaunchBatchLinear with the weights that LaunchUnpackTiles wrote, but reads no rows of
// rounded_input beyond the batch. Needs DeviceHasWgmma and UnpackedTakes.
void LaunchUnpackedLinear(const LinearParams& params, const uint16_t* unpacked,
                          const UnpackedGeometry& geometry, cudaStream_t stream);

}  // namespace adder::cuda
