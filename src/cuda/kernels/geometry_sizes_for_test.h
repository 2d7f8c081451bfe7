// Sizes of matrices and batches that choices of geometries are tested with.
#pragma once

#include "cuda/kernels/linear.h"

namespace adder::cuda {

// Calls `check` with the sizes set in a copy of `params`: from one tile to a head, from one chunk
// of columns to many.
template <class Check>
void ForEachGeometrySize(const LinearParams& params, Check check) {
  for (const int tokens : {9, 16, 100, 256}) {
    for (const int tiles : {1, 48, 211, 532, 6272}) {
      for (const int chunks : {1, 3, 12, 32, 64, 224}) {
        LinearParams p = params;
        p.matrix.tiles = tiles;
        p.matrix.chunks = chunks;
        p.tokens = tokens;
        check(p);
      }
    }
  }
}

}  // namespace adder::cuda
