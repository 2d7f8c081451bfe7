// Runs of sequences with different histories, and the pieces that chunk kernels cut them into.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "cuda/kernels/piece.h"
#include "cuda/kernels/sequence_table.h"

namespace adder::cuda {

struct RunSize {
  int tokens;
  int position;
};

struct ChunkRuns {
  std::vector<SequenceRun> runs;  // without addresses
  std::vector<Piece> pieces;
  std::vector<int> first_pieces;  // of each run, and the count
  int rows = 0;
};

// `slots` holds `slot` floats for each run; those without a history become zero.
inline ChunkRuns MakeChunkRuns(const std::vector<RunSize>& sizes, size_t slot,
                               std::vector<float>& slots) {
  ChunkRuns made;
  for (size_t r = 0; r < sizes.size(); ++r) {
    const RunSize& run = sizes[r];
    if (run.position == 0) {
      std::fill_n(slots.begin() + static_cast<std::ptrdiff_t>(r * slot), slot, 0.0f);
    }
    made.runs.push_back({nullptr, nullptr, run.position, made.rows, run.tokens, 0});
    made.first_pieces.push_back(static_cast<int>(made.pieces.size()));
    for (int done = 0; done < run.tokens; done += kPieceTokens) {
      made.pieces.push_back(
          {made.rows + done, std::min(kPieceTokens, run.tokens - done), static_cast<int>(r), 0});
    }
    made.rows += run.tokens;
  }
  made.first_pieces.push_back(static_cast<int>(made.pieces.size()));
  return made;
}

}  // namespace adder::cuda
