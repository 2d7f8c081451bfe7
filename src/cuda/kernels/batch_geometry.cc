#include <algorithm>

#include "cuda/kernels/batch_linear.h"

namespace adder::cuda {

BatchGeometry ChooseBatchGeometry(const LinearParams& params, int multiprocessors,
                                  bool has_clusters) {
  const PackedMatrix& m = params.matrix;
  const bool one_tile = LoadsOf(m.format) > 2 || m.scale_format == ScaleFormat::kWide;
  BatchGeometry geometry;
  geometry.row_tiles = one_tile ? 1 : 2;
  geometry.token_tiles = params.tokens <= 8 ? 1 : params.tokens <= 32 ? 2 : 4;
  geometry.column_warps = params.tokens <= 8 ? 8 : 4;
  geometry.row_warps = 8 / geometry.column_warps;
  const int token_blocks =
      (params.tokens + geometry.token_tiles * 8 - 1) / (geometry.token_tiles * 8);
  const auto blocks = [&] {
    const int tiles = geometry.row_tiles * geometry.row_warps;
    return (m.tiles + tiles - 1) / tiles * token_blocks;
  };
  if (blocks() > 8 * multiprocessors) {
    geometry.column_warps = 1;
    geometry.row_warps = 8;
  }
  if (!has_clusters || params.epilogue == LinearEpilogue::kRouter) return geometry;
  while (geometry.split < 4 && blocks() * geometry.split * 2 <= multiprocessors * 3 / 2 &&
         m.chunks >= geometry.split * 2 * geometry.column_warps * 2) {
    geometry.split *= 2;
  }
  return geometry;
}

}  // namespace adder::cuda
