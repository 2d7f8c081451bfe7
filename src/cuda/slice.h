// The part of a batch that is run at once, as kernels see it.
#pragma once

#include "cuda/kernels/piece.h"
#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

// The pointers are to device memory.
struct Slice {
  const SequenceRun* runs = nullptr;
  const int* tokens = nullptr;
  const int* row_runs = nullptr;     // which run a row belongs to
  const int* logits_rows = nullptr;  // rows whose logits are asked for; null: all
  int run_count = 0;
  int rows = 0;
  int most_tokens = 0;  // of any run

  // Of slices that run through WideOps.
  bool wide = false;
  const Piece* pieces = nullptr;
  const int* first_pieces = nullptr;  // [run_count + 1]: where a run's pieces begin
  int piece_count = 0;
};

// Tokens of a wide slice at most, and pieces of one with at most so many tokens.
inline constexpr int kWideSliceRows = 4096;
constexpr int WideSlicePieces(int rows) { return 2 * rows / kPieceTokens; }

}  // namespace adder::cuda
