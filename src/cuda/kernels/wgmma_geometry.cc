#include <algorithm>

#include "cuda/kernels/wgmma_linear.h"

namespace adder::cuda {

bool WgmmaTakes(const LinearParams& params, const WgmmaGeometry& g, int shared_bytes) {
  const PackedMatrix& m = params.matrix;
  const bool has_format = m.format == WeightFormat::kQ4 || m.format == WeightFormat::kQ8 ||
                          m.format == WeightFormat::kBf16;
  const bool gated = params.epilogue == LinearEpilogue::kSiluMul;
  if (!has_format || params.epilogue == LinearEpilogue::kRouter ||
      params.rounded_input_stride % 8 != 0 || m.cols % 2 != 0 ||
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
  WgmmaGeometry g;
  while (g.tokens < params.tokens && g.tokens < 64) g.tokens *= 2;
  const int blocks = (m.tiles + 3) / 4 * ((params.tokens + g.tokens - 1) / g.tokens);
  const auto held = [&] {
    return (m.chunks + g.split * g.column_groups - 1) / (g.split * g.column_groups);
  };
  while (g.split < (gated ? 4 : 8) &&
         (held() > kWgmmaMostHeld || blocks * g.split * 2 <= multiprocessors + 16)) {
    g.split *= 2;
  }
  while (g.column_groups < kMostWgmmaGroups && held() > kWgmmaMostHeld) g.column_groups *= 2;
  while (g.tokens > 16 && !WgmmaTakes(params, g, shared_bytes)) g.tokens /= 2;
  *geometry = g;
  return WgmmaTakes(params, g, shared_bytes);
}

}  // namespace adder::cuda
