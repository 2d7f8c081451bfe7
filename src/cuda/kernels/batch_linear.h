// The matrix kernel for many tokens with bf16 activations: batched decoding.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// How the work of one launch is cut up.
struct BatchGeometry {
  int row_tiles = 1;     // tiles of rows per warp: 1 or 2
  int token_tiles = 1;   // groups of eight tokens per block: 1, 2, 4 or 8
  int column_warps = 1;  // warps that share a block's columns; a power of two
  int row_warps = 1;     // warps that share a block's rows; a power of two
  int split = 1;         // blocks of a cluster that share the columns
};
BatchGeometry ChooseBatchGeometry(const LinearParams& params, int multiprocessors,
                                  bool has_clusters);

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
