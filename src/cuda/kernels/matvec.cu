// Launches of the matrix kernel for one token.
#include "cuda/kernels/matvec.h"

#include "cuda/kernels/matvec_launch.cuh"

namespace adder::cuda {

bool CanShareLaunch(Experts kind, const PackedMatrix& experts, const PackedMatrix& shared) {
  return experts.format == shared.format && experts.scale_format == shared.scale_format &&
         experts.interleaved == shared.interleaved && experts.cols % 4 == 0 &&
         shared.cols % 4 == 0 &&
         (kind == Experts::kDown ? experts.rows == shared.rows : experts.cols == shared.cols);
}

bool CanRoute(const PackedMatrix& experts, const PackedMatrix& router, int tokens) {
  const auto span = [&](int quantized, int wide) {
    return !IsQuantized(experts.format)                 ? 1
           : experts.scale_format == ScaleFormat::kWide ? wide
                                                        : quantized;
  };
  const int chunks = span(4, 2);
  const int span_bytes = chunks * LoadsOf(experts.format) * 512 +
                         (IsQuantized(experts.format) ? span(4 * 64, 2 * 256) : 0);
  const int spans = RoundedUp(router.chunks, chunks) * router.tiles;
  return tokens == 1 && experts.format == router.format &&
         experts.scale_format == router.scale_format && experts.cols == router.cols &&
         router.cols % 4 == 0 && !router.interleaved && router.tiles <= kMostRouterTiles &&
         (spans + kMostWarps) * span_bytes <= kMostWeightBytes;
}

void LaunchMatvec(const LinearParams& linear, const ExpertParams* experts, Experts kind,
                  const LinearShape& shape, cudaStream_t stream) {
  if (linear.epilogue == LinearEpilogue::kRule) {
    return LaunchRuledMatvec(linear, experts, shape, stream);
  }
  switch (kind) {
    case Experts::kGateUp:
      if (experts->router.rows == 0) {
        return DispatchMatvec<Experts::kGateUp, LinearEpilogue::kSiluMul>(linear, experts, shape,
                                                                          stream);
      }
      [[fallthrough]];
    case Experts::kRoutedGateUp:
      return DispatchMatvec<Experts::kRoutedGateUp, LinearEpilogue::kSiluMul>(linear, experts,
                                                                              shape, stream);
    case Experts::kDown:
      return DispatchMatvec<Experts::kDown, LinearEpilogue::kAdd>(linear, experts, shape, stream);
    case Experts::kNone:
    case Experts::kNormed:
    case Experts::kPair:
    case Experts::kConvolved:
    case Experts::kHeads:  // the exact kernel's alone
    case Experts::kGrouped:
      break;
  }
  if (linear.norm_weight != nullptr && linear.epilogue != LinearEpilogue::kRouter) {
    return LaunchNormedMatvec(linear, shape, stream);
  }
  switch (linear.epilogue) {
    case LinearEpilogue::kStore:
      return DispatchMatvec<Experts::kNone, LinearEpilogue::kStore>(linear, experts, shape, stream);
    case LinearEpilogue::kAdd:
      return DispatchMatvec<Experts::kNone, LinearEpilogue::kAdd>(linear, experts, shape, stream);
    case LinearEpilogue::kSiluMul:
      return DispatchMatvec<Experts::kNone, LinearEpilogue::kSiluMul>(linear, experts, shape,
                                                                      stream);
    case LinearEpilogue::kRouter:
      return DispatchMatvec<Experts::kNone, LinearEpilogue::kRouter>(linear, experts, shape,
                                                                     stream);
    case LinearEpilogue::kRule:
    case LinearEpilogue::kRouteByRule:
      break;
  }
}

}  // namespace adder::cuda
