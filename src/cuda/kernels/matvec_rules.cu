// The matrix kernel for one token with results as RowRule says, and of routers by rules.
#include "cuda/kernels/matvec_launch.cuh"

namespace adder::cuda {

void LaunchRuledMatvec(const LinearParams& linear, const ExpertParams* experts,
                       const LinearShape& shape, cudaStream_t stream) {
  if (experts == nullptr) {
    return DispatchMatvec<Experts::kNone, LinearEpilogue::kRule>(linear, nullptr, shape, stream);
  }
  DispatchMatvec<Experts::kGateUp, LinearEpilogue::kRule>(linear, experts, shape, stream);
}

void LaunchRouterByRule(const LinearParams& linear, const RouteParams& route,
                        const LinearShape& shape, cudaStream_t stream) {
  DispatchMatvec<Experts::kNone, LinearEpilogue::kRouteByRule>(linear, nullptr, shape, stream,
                                                               nullptr, &route);
}

bool CanConvolve(const PackedMatrix& matrix, const CausalConvParams& conv,
                 const LinearShape& shape) {
  return !shape.batch_invariant && conv.d_conv == kConvolvedTaps && conv.gate_before >= 0 &&
         conv.gate_after >= 0 && !conv.silu && conv.channels == matrix.cols &&
         (matrix.cols | conv.x | conv.gate_before | conv.gate_after) % 4 == 0;
}

void LaunchConvolvedLinear(const LinearParams& linear, const CausalConvParams& conv,
                           const LinearShape& shape, cudaStream_t stream) {
  DispatchMatvec<Experts::kConvolved, LinearEpilogue::kAdd>(linear, nullptr, shape, stream, nullptr,
                                                            nullptr, &conv);
}

bool CanGroup(const PackedMatrix& matrix, int groups, const LinearShape& shape) {
  return !shape.batch_invariant && IsQuantized(matrix.format) &&
         matrix.cols % (groups * kChunkCols) == 0;
}

void LaunchGroupedLinear(const LinearParams& linear, int groups, const LinearShape& shape,
                         cudaStream_t stream) {
  const int group_chunks = linear.matrix.chunks / groups;
  DispatchMatvec<Experts::kGrouped, LinearEpilogue::kAdd>(linear, nullptr, shape, stream, nullptr,
                                                          nullptr, nullptr, group_chunks);
}

bool CanPair(const PackedMatrix& first, const PackedMatrix& second, const LinearShape& shape) {
  // More are better off in streams, each matrix by itself.
  const int most_tiles = shape.multiprocessors * 4;
  return !shape.batch_invariant && first.format == second.format &&
         first.scale_format == second.scale_format && first.cols == second.cols &&
         first.cols % 4 == 0 && !first.interleaved && !second.interleaved &&
         first.tiles + second.tiles <= most_tiles;
}

void LaunchLinearPair(const LinearParams& first, const LinearParams& second,
                      const LinearShape& shape, cudaStream_t stream) {
  LinearParams ruled = first;
  ruled.epilogue = LinearEpilogue::kRule;
  DispatchMatvec<Experts::kPair, LinearEpilogue::kRule>(ruled, nullptr, shape, stream, &second);
}

}  // namespace adder::cuda
