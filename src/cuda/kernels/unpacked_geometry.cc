#include <algorithm>

#include "cuda/kernels/unpacked_linear.h"

namespace adder::cuda {
namespace {

constexpr int kTileBytes = kUnpackedRows * kChunkCols * 2;
constexpr int kSumsPitch = kUnpackedRows + 4;

int RowBlocks(const PackedMatrix& m) {
  constexpr int kTiles = kUnpackedRows / kTileRows;
  return (m.tiles + kTiles - 1) / kTiles;
}

}  // namespace

size_t UnpackedBytes(const PackedMatrix& matrix) {
  return static_cast<size_t>(RowBlocks(matrix)) * static_cast<size_t>(matrix.chunks) * kTileBytes;
}

bool CanUnpack(const PackedMatrix& matrix) {
  const bool has_format = matrix.format == WeightFormat::kQ4 ||
                          matrix.format == WeightFormat::kQ8 ||
                          matrix.format == WeightFormat::kBf16;
  return has_format && matrix.chunks >= 2 && matrix.cols % 2 == 0;
}

UnpackedLayout::UnpackedLayout(bool has_norm, const UnpackedGeometry& g) {
  const int chunks = g.stages * g.groups;
  weights = chunks * g.tokens * kChunkCols * 2;
  const int ring = weights + chunks * kTileBytes;
  const int sums_bytes = g.groups / 2 * g.tokens * kSumsPitch * 4;
  sums = g.blocks > 0 ? ring : 0;
  squares = g.blocks > 0 ? ring + sums_bytes : std::max(ring, sums_bytes);
  total = squares + (has_norm ? g.groups * g.tokens * 4 : 0);
}

bool UnpackedTakes(const LinearParams& params, const UnpackedGeometry& g, int shared_bytes) {
  const PackedMatrix& m = params.matrix;
  return params.epilogue != LinearEpilogue::kRouter &&
         params.epilogue != LinearEpilogue::kRouteByRule && params.rounded_input_stride % 8 == 0 &&
         g.stages >= 2 && g.stages <= kMostUnpackedStages && (g.split == 1 || g.blocks == 0) &&
         g.tokens % 8 == 0 && g.tokens % g.split == 0 && m.chunks >= g.groups * g.split &&
         (g.groups == 2 || g.tokens < 128) &&
         UnpackedLayout(params.norm_weight != nullptr, g).total <= shared_bytes;
}

bool ChooseUnpackedGeometry(const LinearParams& params, int multiprocessors, int shared_bytes,
                            UnpackedGeometry* geometry) {
  // The best of those measured on an H200 at the sizes of granite-4.0-h-350m and mamba2-1.3b.
  UnpackedGeometry g;
  const PackedMatrix& m = params.matrix;
  const int row_blocks = RowBlocks(m);
  const bool head = row_blocks > 8 * multiprocessors;
  const int most_tokens = params.tokens > 128 || (head && params.tokens > 64) ? 128 : 64;
  g.tokens = 16;
  while (g.tokens < params.tokens && g.tokens < most_tokens) g.tokens *= 2;
  const int token_blocks = (params.tokens + g.tokens - 1) / g.tokens;
  const int blocks = row_blocks * token_blocks;
  while (g.split < 8 && blocks * g.split * 2 <= multiprocessors && m.chunks >= 8 * g.split) {
    g.split *= 2;
  }
  g.stages = g.tokens <= 32 ? 4 : 3;
  if (g.split == 2 && m.chunks <= 16 && g.tokens <= 64) {
    // Few columns are better shared by warpgroups than by blocks.
    g.split = 1;
    g.groups = 4;
    g.stages = 3;
  } else if (blocks * 4 > multiprocessors * 5) {
    g.blocks = std::max(1, multiprocessors / token_blocks);
    if (g.tokens <= 32) {
      g.groups = 4;
    } else if (g.tokens == 64) {
      g.stages = 6;
    }
  } else if (g.split <= 2 && g.tokens == 64 && token_blocks > 1) {
    g.stages = 4;
  } else if (g.tokens == 128) {
    g.stages = 4;
  }
  *geometry = g;
  return UnpackedTakes(params, g, shared_bytes);
}

}  // namespace adder::cuda
