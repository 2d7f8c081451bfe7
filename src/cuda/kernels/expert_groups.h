// Mixtures of experts over many tokens: rows are grouped by expert on the device, then each
// expert's matrix is multiplied with its rows.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "cuda/kernels/packed_matrix.h"
#include "model/plan.h"

namespace adder::cuda {

// Rows of one expert, at most tile_rows, behind each other in `order`.
struct ExpertTile {
  int expert;
  int first;
  int rows;
  int unused;
};
inline constexpr int kMostGroupedExperts = 1024;

// Rows per tile that suit so many pairs of tokens and choices.
constexpr int ExpertTileRows(int pairs, int experts) {
  return pairs >= 96 * experts ? 128 : pairs >= 32 * experts ? 64 : 32;
}
// Tiles that `pairs` pairs over `experts` experts can need at most.
constexpr int MostExpertTiles(int pairs, int experts) {
  return pairs / ExpertTileRows(pairs, experts) + experts;
}

// Pairs of tokens and chosen experts, grouped. All in device memory.
struct ExpertGroups {
  int tokens = 0;
  int top_k = 0;
  int experts = 0;           // at most kMostGroupedExperts
  float* routing = nullptr;  // [tokens, routing_stride]: weights, then experts as f32
  int routing_stride = 0;
  int* chosen = nullptr;        // [tokens * top_k]: experts; -1: none, whose weight is 0
  int* order = nullptr;         // [tokens * top_k]: pairs token * top_k + choice, by expert
  ExpertTile* tiles = nullptr;  // [MostExpertTiles(tokens * top_k, experts)]
  int* tile_count = nullptr;

  int pairs() const { return tokens * top_k; }
};

// routing and chosen from scores [tokens, scores_stride] of a router: softmax over the top_k
// largest.
void LaunchChooseExperts(const float* scores, int scores_stride, const ExpertGroups& groups,
                         cudaStream_t stream);

// Fills order, tiles and tile_count from chosen.
void LaunchGroupExperts(const ExpertGroups& groups, cudaStream_t stream);

// Rows are bf16, Bf16Stride apart (see bf16_rows.h), the row of pair token * top_k + choice at that
// number. Weights are rounded to bf16.
// output of input [tokens, cols]: [pairs, rows / 2] = activation(gate) * up if the stack is
// interleaved, else [pairs, rows] = activation(up).
void LaunchGroupedGateUp(const ExpertGroups& groups, const PackedMatrix& stack,
                         Activation activation, const __nv_bfloat16* input, __nv_bfloat16* output,
                         cudaStream_t stream);
// output [pairs, rows] from input [pairs, cols]; rows of pairs without an expert are not written.
void LaunchGroupedDown(const ExpertGroups& groups, const PackedMatrix& stack,
                       const __nv_bfloat16* input, __nv_bfloat16* output, cudaStream_t stream);

// output [tokens, stride] = scale * sum over choices of weight * rows [pairs, width], plus what it
// was if `adds`. Rows whose weight is 0 are not read.
void LaunchCombineExperts(const ExpertGroups& groups, const __nv_bfloat16* rows, float scale,
                          int width, bool adds, float* output, int stride, cudaStream_t stream);

}  // namespace adder::cuda
