// How kernels for many tokens cut a batch.
#pragma once

namespace adder::cuda {

// Tokens of a piece: those of a chunk of the Mamba-2 scan.
inline constexpr int kPieceTokens = 128;

// Consecutive tokens of one run, at most kPieceTokens. A run's pieces follow each other; all but
// its last are full.
struct Piece {
  int row;  // of the activation buffers
  int tokens;
  int run;
  int unused;
};

}  // namespace adder::cuda
