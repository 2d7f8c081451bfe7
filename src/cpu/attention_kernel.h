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
  bool interleaved = false;  // pairs of neighbours, not of halves

  const float* Row(int64_t token) const { return values + token * rotary_dim; }
  // The table whose row 0 belongs to `token`.
  RopeTable From(int64_t token) const {
    RopeTable table = *this;
    if (values != nullptr) table.values = Row(token);
    return table;
  }
};

// Writes the row of one position. Angles are rounded to f32 first, like the references do.
void FillRopeRow(const Rope& rope, int64_t position, float* row);

// Copies `heads` heads of head_dim from `from` to `to`, rotating the first rotary_dim elements of
// each by row 0 of the table.
void RotateHeads(const float* from, int64_t heads, int64_t head_dim, const RopeTable& rope,
                 float* to);

// The tokens of one sequence in a batch, after their keys and values were appended.
struct AttentionRun {
  float scale = 1;
  int64_t group = 1;         // query heads of a KV head
  int64_t key_dim = 0;       // of a head of q and k
  int64_t value_dim = 0;     // of a head of v and of the output
  const float* q = nullptr;  // [tokens, q_stride], of it the heads one after the other; not rotated
  int64_t q_stride = 0;
  float* output = nullptr;  // [tokens, output_stride], of it the heads one after the other
  int64_t output_stride = 0;
  int64_t first_position = 0;  // of token 0
  int64_t window = 0;          // > 0: positions that a token attends to at most, its own included
  RopeTable rope;              // row 0 belongs to token 0
  // Per page: [page_positions, key_stride or value_stride]; in it the KV heads are key_step or
  // value_step apart (0: all have the same).
  std::span<const float* const> keys;
  std::span<const float* const> values;
  int64_t key_stride = 0;
  int64_t value_stride = 0;
  int64_t key_step = 0;
  int64_t value_step = 0;
  int64_t page_positions = 0;

  void SetSizes(const Attention& mixer) {
    scale = mixer.scale;
    window = mixer.window;
    group = mixer.heads / mixer.kv_heads;
    key_dim = value_dim = key_step = value_step = mixer.head_dim;
    key_stride = value_stride = mixer.kv_heads * mixer.head_dim;
  }
};

// Attends tokens [token_begin, token_end) for the query heads of one KV head. Pages are taken in
// order with a running softmax, so a token's result does not depend on the other tokens.
void Attend(const AttentionRun& run, int64_t kv_head, int64_t token_begin, int64_t token_end,
            Scratch<float>& scratch);

}  // namespace adder
