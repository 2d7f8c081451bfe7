// Grouped-query attention over paged keys and values.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

// An RMSNorm over each `part` consecutive elements of q, or of k; element i of it has the weight
// number i % size.
struct HeadNorm {
  const float* weight = nullptr;  // null: all ones
  int size = 0;
  int part = 0;  // 0: there is no norm
  float eps = 0;
};

// Sizes as in model/plan.h. A KV page holds, from `kv_offset` bytes on, keys and then values of one
// attention mixer, each [kv_heads][page_positions][head_dim], bf16 or f32.
struct AttentionParams {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;  // at most kMostHeadDim
  float scale = 0;
  const float* inverse_frequencies = nullptr;  // [rotary_dim / 2]; null: no rotary embedding
  int rotary_dim = 0;
  float rotation_factor = 1;  // multiplies what is rotated
  bool kv_bf16 = true;
  long long kv_offset = 0;
  int page_positions = 0;

  const SequenceRun* runs = nullptr;
  int run_count = 0;
  int rows = 0;                   // tokens of all runs
  const int* row_runs = nullptr;  // [rows]: which run a row belongs to
  // [rows, qkv_stride]: q | k | v, then with an output_gate a gate for each element of the output,
  // which is multiplied by its sigmoid; q is rotated in place
  float* qkv = nullptr;
  int qkv_stride = 0;
  bool output_gate = false;
  float* output = nullptr;  // [rows, heads * head_dim]
  int output_stride = 0;
  uint16_t* rounded_output = nullptr;  // a bf16 copy of the output; null: none
  int rounded_output_stride = 0;
  // Scratch of AttentionScratchFloats(...) floats, and AttentionCounters(...) counters that are
  // zero before and after.
  float* partial = nullptr;
  unsigned* arrivals = nullptr;

  HeadNorm q_norm;
  HeadNorm k_norm;
  bool norm_after_rotation = false;  // needs parts of whole heads

  int window = 0;  // > 0: a token attends to so many positions at most, its own included
  // What follows needs norms of single heads (PlacesHeads): a norm of v; rotation of neighbouring
  // elements instead of halves; q | k alone in qkv, v being k before its norm and rotation; q
  // alone, keys and values being in the pages already.
  HeadNorm v_norm;
  bool interleaved = false;
  bool values_from_keys = false;
  bool owns_kv = true;
  // > 0: a page holds keys alone, whose first so many elements are the values; the output is
  // [rows, heads * latent]. For LaunchAttention and LaunchLatentStep only.
  int latent = 0;
};

// Of keys that the step kernel and attention over chunks take.
inline constexpr int kMaxAttentionHeadDim = 256;
// Of all others.
inline constexpr int kMostHeadDim = 768;
// A token's positions are cut into at most so many parts.
inline constexpr int kMaxAttentionParts = 32;
// Blocks that share a part are at most so many.
inline constexpr int kMostAttentionCluster = 8;

// Sizes of the scratch for `rows` rows.
size_t AttentionScratchFloats(int rows, int heads, int head_dim);
size_t AttentionCounters(int rows, int heads);

// Whether q, k and v need the kernel of attention_place.h: what other kernels know of is enough for
// most models.
bool PlacesHeads(const AttentionParams& params);

// Norms and rotates q and k, in place what of q, and appends k and v to the pages, which must be
// there.
void LaunchKvAppend(const AttentionParams& params, cudaStream_t stream);

// Softmax attention of every row over positions 0 .. its own, after LaunchKvAppend. How positions
// are cut into parts depends on the position alone, so results do not depend on the batch.
void LaunchAttention(const AttentionParams& params, cudaStream_t stream);

// Both for batches with one token per run, in one kernel where keys and values are bf16; how
// positions are cut then depends on the batch. Keys and values of earlier positions must have been
// written before the kernel before this one. Whether q is rotated in place is not said.
void LaunchAttentionStep(const AttentionParams& params, cudaStream_t stream);

}  // namespace adder::cuda
