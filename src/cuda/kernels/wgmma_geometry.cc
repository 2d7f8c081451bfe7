#include "cuda/kernels/wgmma_linear.h"

namespace adder::cuda {

bool WgmmaTakes(const LinearParams& params, const WgmmaGeometry& g, int shared_bytes) {
  const PackedMatrix& m = params.matrix;
  const bool has_format = m.format == WeightFormat::kQ4 || m.format == WeightFormat::kQ8 ||
                          m.format == WeightFormat::kBf16;
  const bool gated = params.epilogue == LinearEpilogue::kSiluMul;
  const bool has_epilogue =
      params.epilogue == LinearEpilogue::kStore || params.epilogue == LinearEpilogue::kAdd || gated;
  if (!has_format || !has_epilogue || params.rounded_input_stride % 8 != 0 || m.cols % 2 != 0 ||
      g.column_groups * g.row_groups > kMostWgmmaGroups || g.split > (gated ? 4 : 8) ||
      m.chunks / g.split < g.column_groups ||
      (m.chunks + g.split - 1) / g.split > kWgmmaMostChunks) {
    return false;
  }
  const WgmmaLayout layout(m, params.norm_weight != nullptr, g);
  return layout.held <= kWgmmaMostHeld && layout.total <= shared_bytes;
}

bool ChooseWgmmaGeometry(const LinearParams& params, int multiprocessors, int shared_bytes,
                         WgmmaGeometry* geometry) {
  const PackedMatrix& m = params.matrix;
  const bool gated = params.epilogue == LinearEpilogue::kSiluMul;
  const int row_blocks = (m.tiles * kTileRows + kWgmmaRows - 1) / kWgmmaRows;
  WgmmaGeometry g;
  while (g.tokens < params.tokens && g.tokens < 64) g.tokens *= 2;
  // The best of those measured on an H200 at the sizes of granite-4.0-h-350m. What decides is how
  // many blocks of rows there are for each multiprocessor.
  if (row_blocks * 6 <= multiprocessors) {
    if (params.tokens > 128) return false;
    g.split = gated ? 4 : 8;
  } else if (row_blocks <= multiprocessors / 2) {
    if (params.tokens > 64) return false;
    g.split = gated ? 2 : 4;
    if (g.tokens == 64) g.row_groups = 2;
    if (gated && g.tokens == 16) g.column_groups = 2;
  } else {
    return false;
  }
  *geometry = g;
  return WgmmaTakes(params, g, shared_bytes);
}

}  // namespace adder::cuda
