// The matrix kernel for one token with a norm.
#include "cuda/kernels/matvec_launch.cuh"

namespace adder::cuda {

void LaunchNormedMatvec(const LinearParams& linear, const LinearShape& shape, cudaStream_t stream) {
  switch (linear.epilogue) {
    case LinearEpilogue::kStore:
      return DispatchMatvec<Experts::kNormed, LinearEpilogue::kStore>(linear, nullptr, shape,
                                                                      stream);
    case LinearEpilogue::kAdd:
      return DispatchMatvec<Experts::kNormed, LinearEpilogue::kAdd>(linear, nullptr, shape, stream);
    case LinearEpilogue::kSiluMul:
      return DispatchMatvec<Experts::kNormed, LinearEpilogue::kSiluMul>(linear, nullptr, shape,
                                                                        stream);
    case LinearEpilogue::kRouter:
    case LinearEpilogue::kRule:
    case LinearEpilogue::kRouteByRule:
      break;
  }
}

}  // namespace adder::cuda
