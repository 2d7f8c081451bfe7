// The matrix kernel for one token with results as RowRule says.
#include "cuda/kernels/matvec_launch.cuh"

namespace adder::cuda {

void LaunchRuledMatvec(const LinearParams& linear, const ExpertParams* experts,
                       const LinearShape& shape, cudaStream_t stream) {
  if (experts == nullptr) {
    return DispatchMatvec<Experts::kNone, LinearEpilogue::kRule>(linear, nullptr, shape, stream);
  }
  DispatchMatvec<Experts::kGateUp, LinearEpilogue::kRule>(linear, experts, shape, stream);
}

}  // namespace adder::cuda
