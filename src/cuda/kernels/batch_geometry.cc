#include "cuda/kernels/batch_linear.h"

namespace adder::cuda {
namespace {

// The best of those measured on an H200 at the sizes of granite-4.0-h-350m and mamba2-1.3b, with
// `split` the most blocks that may share columns. What decides is how many tiles of rows there are
// for each multiprocessor.
BatchGeometry Measured(int tokens, double tiles_per_processor) {
  const bool few = tiles_per_processor < 0.67;
  const bool large = tiles_per_processor >= 3;
  const bool huge = tiles_per_processor >= 20;  // heads
  if (tokens <= 8) {
    if (huge) return {2, 1, 1, 8, 1};
    if (large) return {2, 1, 2, 2, 4};
    if (few) return {1, 1, 8, 1, 2};
    return {2, 1, 8, 1, 2};
  }
  if (huge) return {2, 4, 1, 8, 1};
  if (tokens <= 32) {
    if (large) return {2, 4, 2, 2, 2};
    if (few) return {2, 1, 8, 1, 2};
    return {2, 2, 4, 2, 2};
  }
  if (large) return {2, 4, 1, 4, 4};
  return {2, 4, 4, 2, 2};
}

}  // namespace

BatchGeometry ChooseBatchGeometry(const LinearParams& params, const BatchDevice& device) {
  const PackedMatrix& m = params.matrix;
  const double tiles_per_processor = static_cast<double>(m.tiles) / device.multiprocessors;
  BatchGeometry g = Measured(params.tokens, tiles_per_processor);
  if (!CanTakeTwoTiles(m.format, m.scale_format)) g.row_tiles = 1;

  const bool may_split = device.has_clusters && params.epilogue != LinearEpilogue::kRouter;
  const int most_split = may_split ? g.split : 1;
  const int block_tiles = g.row_tiles * g.row_warps;
  const int block_tokens = g.token_tiles * 8;
  const int blocks = (m.tiles + block_tiles - 1) / block_tiles *
                     ((params.tokens + block_tokens - 1) / block_tokens);
  const int least_stages = g.column_warps == 8 ? 4 : 2;
  const auto worth_it = [&](int split) {
    const bool idle = blocks * split <= 2 * device.multiprocessors || tiles_per_processor >= 3;
    return idle && m.chunks >= split * g.column_warps * least_stages;
  };
  g.split = 1;
  while (g.split * 2 <= most_split && worth_it(g.split * 2)) g.split *= 2;

  const int unit = LoadsOf(m.format) * 512 + ScaleBytesPerChunk(m.scale_format);
  const auto fits = [&] {
    return BatchLayout(m.chunks, unit, params.norm_weight != nullptr, g).total <=
           device.shared_bytes;
  };
  while (g.column_warps > 1 && !fits()) g.column_warps /= 2;
  while (g.row_warps > 1 && !fits()) g.row_warps /= 2;
  while (g.token_tiles > 1 && !fits()) g.token_tiles /= 2;
  return g;
}

}  // namespace adder::cuda
