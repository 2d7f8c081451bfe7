#include <algorithm>
#include <cstdint>

#include "cuda/kernels/wgmma_linear.h"

namespace adder::cuda {

bool ChooseWgmmaGeometry(const LinearParams& params, int multiprocessors, int shared_bytes,
                         WgmmaGeometry* geometry) {
  const PackedMatrix& m = params.matrix;
  const bool has_format = m.format == WeightFormat::kQ4 || m.format == WeightFormat::kQ8 ||
                          m.format == WeightFormat::kBf16;
  if (!has_format || params.epilogue == LinearEpilogue::kRouter ||
      params.rounded_input_stride % 8 != 0 || m.cols % 2 != 0) {
    return false;
  }
  const bool gated = params.epilogue == LinearEpilogue::kSiluMul;
  // Fours of results must lie together.
  const int rows = gated ? m.rows / 2 : m.rows;
  if ((rows | params.output_stride | params.rounded_output_stride) % 4 != 0 ||
      reinterpret_cast<uintptr_t>(params.bias) % 16 != 0) {
    return false;
  }
  WgmmaGeometry g;
  while (g.tokens < params.tokens && g.tokens < 64) g.tokens *= 2;
  const int parts = (params.tokens + g.tokens - 1) / g.tokens;
  g.column_groups = m.chunks >= 2 ? 2 : 1;
  const int blocks = (m.tiles * kTileRows + kWgmmaRows - 1) / kWgmmaRows;
  while (g.split < (gated ? 4 : 8) && blocks * parts * g.split * 2 <= multiprocessors + 16 &&
         m.chunks >= g.split * 2 * g.column_groups) {
    g.split *= 2;
  }
  const auto fits = [&] {
    return (m.chunks + g.split - 1) / g.split <= kWgmmaMostChunks &&
           WgmmaLayout(m, params.norm_weight != nullptr, g).total <= shared_bytes;
  };
  while (!fits() && g.split < (gated ? 4 : 8)) g.split *= 2;
  while (!fits() && g.tokens > 16) g.tokens /= 2;
  if (!fits() || m.chunks < g.split * g.column_groups) return false;
  const int token_blocks = (params.tokens + g.tokens - 1) / g.tokens;
  // All take equally many groups of rows.
  const int most = std::max(1, multiprocessors / (g.split * token_blocks));
  const int steps = (blocks + most - 1) / most;
  g.row_blocks = (blocks + steps - 1) / steps;
  *geometry = g;
  return true;
}

}  // namespace adder::cuda
