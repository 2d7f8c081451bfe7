// Matrix products of the CPU backend: y = W x for the tokens of a batch.
//
// Every kernel gives each (row, token) a sum whose order of operations depends on the matrix alone.
// So results are bitwise the same for any batch, chunking, thread count and range of blocks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "core/weight_matrix.h"
#include "cpu/aligned_memory.h"
#include "cpu/packed_matrix.h"

namespace adder {

// Where the results of a matrix go: token t, row r at data[t * stride + r], as
// scale * row_scales[r] * (input_scale * y + bias), added to what is there when `add`.
struct MatmulOutput {
  float* data = nullptr;
  int64_t stride = 0;
  const float* bias = nullptr;  // one per row, or none
  float scale = 1;
  bool add = false;
  float input_scale = 1;
  const float* row_scales = nullptr;  // one per row, or none
};

// Activations quantised per group of columns: x = scale * q, q in [-127, 127]. Tokens lie in tiles
// of TokenTile() (the last may be smaller). The tile of T tokens that starts at token t holds
//   values + t * cols:   [cols / 4][T][4]    scales, sums + t * groups:   [groups][T]
// where sums are scale * sum(q) of the group.
struct QuantizedInput {
  int group_size = 0;
  const int8_t* values = nullptr;
  const float* scales = nullptr;
  const float* sums = nullptr;
};

// What one thread needs while it multiplies.
struct MatmulScratch {
  Scratch<uint8_t> weights;
  Scratch<float> floats;
};

int64_t TokenTile();

// Quantises x [tokens, cols] into the three arrays of a QuantizedInput, for the tiles that start
// at tokens [token_begin, token_end) (a multiple of TokenTile() first).
void QuantizeRows(const float* x, int64_t tokens, int64_t cols, int group_size, int64_t token_begin,
                  int64_t token_end, int8_t* values, float* scales, float* sums);

// Rows of blocks [block_begin, block_end) of a packed matrix. Fast: integer products with quantised
// activations; sums of a group are exact, groups are added in order in f32. F32: weights as exact
// f32, columns summed by their number modulo four.
void MatmulPackedFast(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
                      const QuantizedInput& input, int64_t tokens, const MatmulOutput& output,
                      MatmulScratch& scratch);
void MatmulPackedF32(const PackedMatrix& matrix, int64_t block_begin, int64_t block_end,
                     const float* x, int64_t tokens, const MatmulOutput& output,
                     MatmulScratch& scratch);
// Rows [row_begin, row_end) of a dense segment, read where it lies.
void MatmulDense(const MatrixSegment& matrix, int64_t row_begin, int64_t row_end, const float* x,
                 int64_t tokens, const MatmulOutput& output);

}  // namespace adder
