// Writes of Mamba-2 states that steps deferred (see mamba2_deferred.h).
//
// Ownership. A block owns a part of one head, as mamba2_state.cuh says. Phases: PdlWait; state and
// deferred tokens are loaded, the tokens' steps repeated, and the state is written. Blocks of heads
// that lack nothing end at once.
#include <cuda_runtime.h>

#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/mamba2_deferred.cuh"

namespace adder::cuda {
namespace {

template <class Stored>
__global__ void __launch_bounds__(kMaxThreads)
    Mamba2SettleKernel(const __grid_constant__ Mamba2Params p) {
  __shared__ DeferredB past_b[kMaxWarps];
  __shared__ DeferredX past_x[kMaxWarps];
  PdlWait();
  PdlTrigger();
  const Place place = FindPlace(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  const SequenceRun run = p.runs[blockIdx.z];
  const int steps = StepsSinceTurn(run, place.head);
  const int count = DeferredCount(run, steps);
  if (count == 0) return;
  Stored* states = StateOf<Stored>(p, place, run.recurrent);
  float4 state[kRows];
  LoadState<true>(state, states, p, place);
  float b[kMostDeferred];
  DeferredX::Values x;
  DeferredB::Load(p, run, place, b);
  x.Load(p, run, place);
  past_b[place.warp].Store(place.lane, b);
  past_x[place.warp].Store(place.lane, x, steps);
  __syncwarp();
  RepeatDeferred(state, past_b[place.warp], past_x[place.warp], count, place.lane / 8 * kRows,
                 place.lane);
  StoreState<true>(state, states, p, place);
}

}  // namespace

void LaunchMamba2Settle(const Mamba2Params& params, cudaStream_t stream) {
  const auto kernel =
      WithStored(params.ssm_dtype, [&]<class Stored>() { return Mamba2SettleKernel<Stored>; });
  const auto threads = static_cast<unsigned>((params.d_state + kWarpRows - 1) / kWarpRows) * 32;
  Launch("the kernel that settles Mamba-2 states", kernel,
         dim3(static_cast<unsigned>(params.heads),
              static_cast<unsigned>((params.head_dim + kPart - 1) / kPart),
              static_cast<unsigned>(params.run_count)),
         dim3(threads), 0, stream, params);
}

}  // namespace adder::cuda
