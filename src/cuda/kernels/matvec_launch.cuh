// How the work of the matrix kernel for one token is cut, and which kernel does it.
#pragma once

#include <algorithm>

#include "cuda/kernels/matvec.h"
#include "cuda/kernels/matvec_kernel.cuh"

namespace adder::cuda {

inline int RoundedUp(int value, int by) { return (value + by - 1) / by; }

// Of a chunk of activations in shared memory.
template <WeightFormat F, bool kWide>
constexpr int kChunkBytes = IsQuantized(F) ? kActivationBytesPerChunk
                                                 + kChunkGroups<kWide>* int{sizeof(GroupUnit)}
                                           : 4 * kChunkCols;

// Whether there is a kernel for spans in registers: of weights that fit there, and of rows that are
// read as they are by those who prepare them alone.
template <WeightFormat F, Experts kExperts, LinearEpilogue kEpilogue>
constexpr bool kCanKeep = (IsQuantized(F) || F == WeightFormat::kBf16) &&
                          kExperts != Experts::kGateUp&& kExperts != Experts::kDown&& kExperts
                              != Experts::kConvolved
                          &&
                          (!kMayNormalize<kExperts, kEpilogue> ||
                           kChunkSquares<kExperts, kEpilogue, Walk::kKept>);

struct Launcher {
  MatvecParams params;
  unsigned grid_y;
  int multiprocessors;
  cudaStream_t stream;

  // Few spans per warp, as long as all blocks are on the device at once.
  void ChooseWarps(int tiles, int spans) {
    const int tiles_per_multiprocessor = RoundedUp(tiles, multiprocessors);
    params.held_spans =
        std::max(RoundedUp(spans, kMostWarps),
                 std::min(2, RoundedUp(spans * tiles_per_multiprocessor, kMostWarps)));
    params.column_warps = RoundedUp(spans, params.held_spans);
    params.row_warps =
        std::max(1, std::min(kMostWarps / params.column_warps, tiles_per_multiprocessor));
  }

  void CutRows(int row_warps, int spans) {
    params.row_warps = row_warps;
    params.column_warps = std::min(spans, kMostWarps / row_warps);
    params.held_spans = RoundedUp(spans, params.column_warps);
  }

  // Of one token's experts: more rows per block, until all blocks are on the device at once.
  template <WeightFormat F, bool kWide, class BlocksOf>
  void FitExperts(int spans, BlocksOf blocks_of) {
    constexpr int kMostRowWarps = 5;
    const int activation_bytes = spans * kSpanChunks<F, kWide> * kChunkBytes<F, kWide>;
    const auto fits = [&] {
      const int warps = params.column_warps * params.row_warps;
      int weights = warps * params.held_spans * kSpanBytes<F, kWide>;
      if (weights > kMostWeightBytes) weights = warps * kRingSpans * kSpanBytes<F, kWide>;
      const int resident = (DeviceSharedBytes() + 2048) / (weights + activation_bytes + 1024);
      return blocks_of(params.row_warps) <= multiprocessors * std::clamp(resident, 1, 2);
    };
    if (grid_y != 1) return;
    while (!fits() && params.row_warps < kMostRowWarps) CutRows(params.row_warps + 1, spans);
  }

  // Whether the matrix fits into the device's shared memory, cut into a block per multiprocessor;
  // the cut is then chosen.
  template <WeightFormat F, bool kWide>
  bool FillsOnce(int tiles, int spans) {
    const int row_warps = RoundedUp(tiles, multiprocessors);
    if (row_warps > kMostWarps) return false;
    const MatvecParams before = params;
    CutRows(row_warps, spans);
    params.column_warps_reciprocal = Reciprocal(params.column_warps);
    const int weights = row_warps * params.column_warps * params.held_spans * kSpanBytes<F, kWide>;
    if (weights + spans * kSpanChunks<F, kWide> * 260 + 2048 <= DeviceSharedBytes()) return true;
    params = before;
    return false;
  }

  template <WeightFormat F, bool kWide, Experts kExperts, LinearEpilogue kEpilogue>
  void Run() {
    constexpr int kChunks = kSpanChunks<F, kWide>;
    const PackedMatrix& m = params.linear.matrix;
    params.spans = (m.chunks + kChunks - 1) / kChunks;
    params.spans_reciprocal = Reciprocal(params.spans);
    constexpr bool kRoutes = kExperts == Experts::kRoutedGateUp;
    constexpr bool kGateUp = kExperts == Experts::kGateUp || kExperts == Experts::kPair || kRoutes;
    int spans = params.spans * (kExperts == Experts::kDown ? params.top_k : 1);
    if (kExperts == Experts::kDown) spans += (params.shared.chunks + kChunks - 1) / kChunks;
    params.spans_of_block = spans;
    const int tiles = kGateUp ? m.tiles * params.top_k + params.shared.tiles : m.tiles;
    ChooseWarps(tiles * static_cast<int>(grid_y), spans);
    // One block chooses experts without waiting for others.
    if (kEpilogue == LinearEpilogue::kRouter && m.tiles <= kMostRouterTiles) {
      params.row_warps = m.tiles;
      params.column_warps = std::min(spans, kMostWarps / m.tiles);
      params.held_spans = (spans + params.column_warps - 1) / params.column_warps;
    }
    if (kExperts == Experts::kGateUp || kExperts == Experts::kDown) {
      FitExperts<F, kWide>(spans, [&](int row_warps) {
        const int blocks = RoundedUp(m.tiles, row_warps);
        return kGateUp ? blocks * params.top_k + RoundedUp(params.shared.tiles, row_warps) : blocks;
      });
    }
    if (kRoutes) {
      // At least a warp per tile of the router, of which there are at most kMostRouterTiles.
      params.row_warps =
          std::max(params.row_warps, RoundedUp(params.router.tiles, params.column_warps));
    }
    params.column_warps_reciprocal = Reciprocal(params.column_warps);
    params.blocks_per_expert = RoundedUp(m.tiles, params.row_warps);
    params.blocks_per_expert_reciprocal = Reciprocal(params.blocks_per_expert);
    int blocks = params.blocks_per_expert;
    if (kGateUp) {
      blocks = blocks * params.top_k + RoundedUp(params.shared.tiles, params.row_warps);
    }
    if constexpr (kRoutes) {
      params.router_column_warps = params.column_warps * params.row_warps / params.router.tiles;
      params.router_column_warps_reciprocal = Reciprocal(params.router_column_warps);
      return Start<F, kWide, kExperts, kEpilogue, Walk::kOnce>(blocks);
    }
    // What large models have more tiles of than fit on the device at once.
    constexpr bool kChooses =
        kEpilogue == LinearEpilogue::kRouter || kEpilogue == LinearEpilogue::kRouteByRule;
    if constexpr ((kExperts == Experts::kNone || kExperts == Experts::kNormed) && !kChooses) {
      if (blocks > 2 * multiprocessors) {
        if (FillsOnce<F, kWide>(m.tiles, spans)) {
          return Start<F, kWide, kExperts, kEpilogue, Walk::kOnce>(
              RoundedUp(m.tiles, params.row_warps));
        }
        params.column_warps = 1;
        params.row_warps = kStreamWarps;
        // Every warp has the same number of tiles, or one fewer.
        const int most = multiprocessors * kStreamBlocksPerMultiprocessor * kStreamWarps;
        const int rounds = (m.tiles + most - 1) / most;
        const int warps = (m.tiles + rounds - 1) / rounds;
        return Start<F, kWide, kExperts, kEpilogue, Walk::kStream>((warps + kStreamWarps - 1) /
                                                                   kStreamWarps);
      }
    }
    // Large matrices are faster from shared memory, as measured: their weights come late.
    if constexpr (kCanKeep<F, kExperts, kEpilogue>) {
      if (params.held_spans == 1 && params.triggers_early) {
        return Start<F, kWide, kExperts, kEpilogue, Walk::kKept>(blocks);
      }
    }
    const int warps = params.column_warps * params.row_warps;
    if (warps * params.held_spans * kSpanBytes<F, kWide> <= kMostWeightBytes) {
      return Start<F, kWide, kExperts, kEpilogue, Walk::kOnce>(blocks);
    }
    Start<F, kWide, kExperts, kEpilogue, Walk::kLoop>(blocks);
  }

  template <WeightFormat F, bool kWide, Experts kExperts, LinearEpilogue kEpilogue, Walk kWalk>
  void Start(int blocks) {
    const auto kernel = MatvecKernel<F, kWide, kExperts, kEpilogue, kWalk>;
    const int warps = params.column_warps * params.row_warps;
    constexpr bool kKept = kWalk == Walk::kKept;
    params.weight_spans =
        kKept ? 0 : warps * (kWalk == Walk::kOnce ? params.held_spans : kRingSpans);
    if (kExperts == Experts::kRoutedGateUp) {
      const int router_warps = params.router_column_warps * params.router.tiles;
      params.router_held_spans = RoundedUp(params.spans, params.router_column_warps);
      params.weight_spans = std::max(params.weight_spans, router_warps * params.router_held_spans);
    }
    const int chunks = params.spans_of_block * kSpanChunks<F, kWide>;
    const int activation_bytes = chunks * kChunkBytes<F, kWide> +
                                 (IsQuantized(F) ? 0 : 4 * kColumnPad) +
                                 (kChunkSquares<kExperts, kEpilogue, kWalk> ? chunks * 4 : 0);
    const int partial_bytes = kWalk == Walk::kStream ? 0 : warps * kTileRows * 4;
    const int router_bytes =
        kEpilogue == LinearEpilogue::kRouteByRule
            ? ChoiceByRuleBytes(params.route.experts, params.route.groups)
            : ExpertChoice::Bytes(kEpilogue == LinearEpilogue::kRouter ? params.linear.matrix.rows
                                                                       : params.router.rows);
    const int copied_bytes =
        kKept ? StagedBytes<kMayNormalize<kExperts, kEpilogue>>(chunks * kChunkCols)
              : params.weight_spans * kSpanBytes<F, kWide>;
    auto shared = static_cast<size_t>(copied_bytes + activation_bytes + partial_bytes +
                                      int{sizeof(float)} + router_bytes);
    // Of matrices that add to the residual, no two blocks share a multiprocessor: the device puts
    // them together where the blocks of the kernel before leave room. Where nearly every
    // multiprocessor has a block anyway, so much memory only delays them.
    if (kEpilogue == LinearEpilogue::kAdd && (kKept || kWalk == Walk::kOnce) &&
        params.triggers_early && blocks * static_cast<int>(grid_y) <= multiprocessors / 4 * 3) {
      shared = std::max(shared, static_cast<size_t>(DeviceSharedBytes() / 2 + 2048));
    }
    if (shared > 48 * 1024) {
      Check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(shared)),
            "setting the matrix-vector kernel's shared memory");
    }
    params.preparing_warps = std::max(
        warps, std::min(kWalk == Walk::kStream ? kStreamWarps : kMostWarps, (chunks + 1) / 2));
    const int helper =
        params.linear.norm_weight != nullptr && kExperts != Experts::kGrouped ? 1 : 0;
    Launch("the matrix-vector kernel", kernel, dim3(static_cast<unsigned>(blocks), grid_y),
           dim3(static_cast<unsigned>((params.preparing_warps + helper) * 32)), shared, stream,
           params);
  }
};

template <Experts kExperts, LinearEpilogue kEpilogue>
void DispatchMatvec(const LinearParams& linear, const ExpertParams* experts,
                    const LinearShape& shape, cudaStream_t stream,
                    const LinearParams* second = nullptr, const RouteParams* route = nullptr,
                    const CausalConvParams* conv = nullptr, int group_chunks = 0) {
  const PackedMatrix& m = linear.matrix;
  Launcher launcher = {};
  launcher.params.linear = linear;
  // What the next kernel loads first would compete with the weights of a large matrix. Behind gates
  // of experts, it reads first what was routed.
  constexpr int64_t kSmallQuantized = 4 << 20;
  constexpr int64_t kSmallDense = 8 << 20;
  launcher.params.triggers_early = kExperts != Experts::kGateUp &&
                                   kExperts != Experts::kRoutedGateUp &&
                                   m.data_stride * int64_t{sizeof(uint4)} <=
                                       (IsQuantized(m.format) ? kSmallQuantized : kSmallDense);
  launcher.params.inverse_cols = 1.0f / static_cast<float>(m.cols);
  launcher.grid_y = 1;
  launcher.multiprocessors = shape.multiprocessors;
  launcher.stream = stream;
  if (experts != nullptr) {
    launcher.params.routing = experts->routing;
    launcher.params.routing_stride = experts->routing_stride;
    launcher.params.top_k = experts->top_k;
    launcher.params.shared = experts->shared;
    launcher.params.shared_input = experts->shared_input;
    launcher.params.shared_input_stride = experts->shared_input_stride;
    launcher.params.shared_gate = experts->shared_gate;
    launcher.params.shared_gate_stride = experts->shared_gate_stride;
    launcher.params.shared_output = experts->shared_output;
    launcher.params.shared_output_stride = experts->shared_output_stride;
    launcher.params.router = experts->router;
    launcher.params.router_bias = experts->router_bias;
    launcher.params.chosen = experts->chosen;
    launcher.grid_y = static_cast<unsigned>(linear.tokens);
  }
  launcher.params.group_chunks = group_chunks;
  if (conv != nullptr) launcher.params.conv = *conv;
  if (route != nullptr) launcher.params.route = *route;
  if (second != nullptr) {
    launcher.params.top_k = 1;
    launcher.params.shared = second->matrix;
    launcher.params.shared_output = second->output;
    launcher.params.shared_output_stride = second->output_stride;
    launcher.params.second_bias = second->bias;
    launcher.params.second_factors = second->rule.factors;
    launcher.params.second_scale = second->scale;
  }
  const bool wide = m.scale_format == ScaleFormat::kWide;
  switch (m.format) {
    case WeightFormat::kQ4:
      return wide ? launcher.Run<WeightFormat::kQ4, true, kExperts, kEpilogue>()
                  : launcher.Run<WeightFormat::kQ4, false, kExperts, kEpilogue>();
    case WeightFormat::kQ8:
      return wide ? launcher.Run<WeightFormat::kQ8, true, kExperts, kEpilogue>()
                  : launcher.Run<WeightFormat::kQ8, false, kExperts, kEpilogue>();
    case WeightFormat::kBf16:
      return launcher.Run<WeightFormat::kBf16, false, kExperts, kEpilogue>();
    case WeightFormat::kF16:
      return launcher.Run<WeightFormat::kF16, false, kExperts, kEpilogue>();
    case WeightFormat::kF32:
      return launcher.Run<WeightFormat::kF32, false, kExperts, kEpilogue>();
  }
}

}  // namespace adder::cuda
