// Causal grouped-query attention over paged keys and values.
#pragma once

#include <cstdint>
#include <span>

#include "cpu/aligned_memory.h"
#include "model/plan.h"

namespace adder {

// cos and sin of the angles of each token of a batch: [tokens, 2, rotary_dim / 2].
struct RopeTable {
  const float* values = nullptr;  // none: no rotation
  int64_t rotary_dim = 0;

  const float* Row(int64_t token) const { return values + token * rotary_dim; }
};

// Writes the row of one position. Angles are rounded to f32 first, like the references do.
void FillRopeRow(const Rope& rope, int64_t position, float* row);

// Copies `heads` heads of head_dim from `from` to `to`, rotating the first rotary_dim elements of
// each (rotary_dim 0: a copy).
void RotateHeads(const float* from, int64_t heads, int64_t head_dim, const float* rope_row,
                 int64_t rotary_dim, float* to);

// The tokens of one sequence in a batch, after their keys and values were appended.
struct AttentionRun {
  const Attention* mixer = nullptr;
  const float* q = nullptr;  // [tokens, q_stride], heads * head_dim used; not yet rotated
  int64_t q_stride = 0;
  float* output = nullptr;  // [tokens, output_stride]
  int64_t output_stride = 0;
  int64_t first_position = 0;  // of token 0
  RopeTable rope;              // row 0 belongs to token 0
  // Per page: [page_positions, kv_heads * head_dim].
  std::span<const float* const> keys;
  std::span<const float* const> values;
  int64_t page_positions = 0;
};

// Attends tokens [token_begin, token_end) for the query heads of one KV head. Pages are taken in
// order with a running softmax, so a token's result does not depend on the other tokens.
void Attend(const AttentionRun& run, int64_t kv_head, int64_t token_begin, int64_t token_end,
            Scratch<float>& scratch);

}  // namespace adder
