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
         g.stages >= 2 && g.stages <= kMostUnpackedStages &&
         (g.split == 1 || (g.share == 1 && g.blocks == 0)) && g.tokens % (8 * g.share) == 0 &&
         g.tokens % g.split == 0 && m.chunks >= g.groups * g.split &&
         (g.groups == 2 || g.tokens < 128) &&
         UnpackedLayout(params.norm_weight != nullptr, g).total <= shared_bytes;
}

bool ChooseUnpackedGeometry(const LinearParams& params, int multiprocessors, int shared_bytes,
                            UnpackedGeometry* geometry) {
  UnpackedGeometry g;
  const PackedMatrix& m = params.matrix;
  const int row_blocks = RowBlocks(m);
  g.tokens = 16;
  while (g.tokens < params.tokens && g.tokens < 128) g.tokens *= 2;
  const int token_blocks = (params.tokens + g.tokens - 1) / g.tokens;
  while (g.split < 8 && row_blocks * token_blocks * g.split * 2 <= multiprocessors &&
         m.chunks >= 2 * g.groups * g.split) {
    g.split *= 2;
  }
  if (row_blocks * token_blocks > 4 * multiprocessors) {
    g.blocks = std::max(1, multiprocessors / token_blocks);
  }
  *geometry = g;
  return UnpackedTakes(params, g, shared_bytes);
}

}  // namespace adder::cuda
