// Ownership as mamba2_state.cuh says. Phases: (1) the state, which earlier steps wrote, is loaded;
// (2) PdlWait; (3) every warp by itself, which is cheaper than a barrier: squares of B, C and dt,
// and the product of dt with the head's row of dt_proj; B and C of the warp's rows, normed, and the
// part's x to the warp's own shared memory; (4) the step of the state; (5) barrier; the first warp
// adds up the warps' sums, applies D and the gate. Precondition: d_state <= kMaxStateSize.
#include <cuda_bf16.h>

#include "core/error.h"
#include "cuda/kernels/launch.cuh"
#include "cuda/kernels/mamba2_selected.h"
#include "cuda/kernels/mamba2_state.cuh"
#include "cuda/kernels/sums.cuh"

namespace adder::cuda {
namespace {

__device__ __forceinline__ float NormFactor(const SmallNorm& norm, float squares, int size) {
  return norm.used ? rsqrtf(squares / static_cast<float>(size) + norm.eps) : 1.0f;
}
__device__ __forceinline__ float WeightOf(const SmallNorm& norm, int i) {
  return norm.weight == nullptr ? 1.0f : norm.weight[i];
}

template <class Stored, bool kVector>
__global__ void __launch_bounds__(kMaxThreads, 2)
    Mamba2SelectedKernel(const __grid_constant__ Mamba2SelectedParams params) {
  struct alignas(16) OfWarp {
    float b[kWarpRows];
    float c[kWarpRows];
    float x[kPart];
  };
  __shared__ OfWarp of_warps[kMaxWarps];
  __shared__ float partial[kMaxWarps * kPart];
  const Mamba2Params& p = params.scan;
  const Place place = FindPlace(p, static_cast<int>(blockIdx.x), static_cast<int>(blockIdx.y));
  const SequenceRun run = p.runs[blockIdx.z];
  Stored* states = StateOf<Stored>(p, place, run.recurrent);
  float4 state[kRows];
  LoadState<kVector>(state, states, p, place);
  const int all_states = p.groups * p.d_state;
  const int row = place.warp * kWarpRows + place.lane;  // whose B and C this lane norms
  const bool has_row = row < p.d_state;
  const int of_groups = place.group * p.d_state + row;
  const float b_weight = has_row ? WeightOf(params.b_norm, of_groups) : 0.0f;
  const float c_weight = has_row ? WeightOf(params.c_norm, of_groups) : 0.0f;
  const float* dt_row = params.dt_rows + static_cast<long long>(place.head) * params.dt_rank;
  const float dt_bias =
      p.dt_bias[place.head] + (params.dt_offset == nullptr ? 0.0f : params.dt_offset[place.head]);
  const float a = p.a[place.head];
  const float d = p.d[place.head];
  const float* selected =
      params.selected + static_cast<long long>(run.row) * params.selected_stride;
  const float* x_from = params.x + static_cast<long long>(run.row) * params.x_stride;
  const float* z_from = p.projected + static_cast<long long>(run.row) * p.projected_stride;
  float* output = p.output + static_cast<long long>(run.row) * p.output_stride;
  ReadyBeforeWait(selected);
  ReadyBeforeWait(x_from);
  ReadyBeforeWait(z_from);
  ReadyBeforeWait(output);

  PdlWait();
  PdlTrigger();
  const float x = place.has_x ? x_from[place.x_channel] : 0.0f;
  const float z = place.has_x ? z_from[place.x_channel] : 0.0f;
  const float b = has_row ? selected[of_groups] : 0.0f;
  const float c = has_row ? selected[all_states + of_groups] : 0.0f;
  float b_squares = 0;
  float c_squares = 0;
  float dt_squares = 0;
  float dt = 0;
  for (int n = place.lane; n < all_states; n += 32) {
    const float of_b = selected[n];
    const float of_c = selected[all_states + n];
    b_squares = fmaf(of_b, of_b, b_squares);
    c_squares = fmaf(of_c, of_c, c_squares);
  }
#pragma unroll 4
  for (int r = place.lane; r < params.dt_rank; r += 32) {
    const float of_dt = selected[2 * all_states + r];
    dt_squares = fmaf(of_dt, of_dt, dt_squares);
    dt = fmaf(of_dt, dt_row[r] * WeightOf(params.dt_norm, r), dt);
  }
  b_squares = WarpSum(b_squares);
  c_squares = WarpSum(c_squares);
  dt_squares = WarpSum(dt_squares);
  dt = WarpSum(dt) * NormFactor(params.dt_norm, dt_squares, params.dt_rank);
  OfWarp& mine = of_warps[place.warp];
  mine.b[place.lane] = b * b_weight * NormFactor(params.b_norm, b_squares, all_states);
  mine.c[place.lane] = c * c_weight * NormFactor(params.c_norm, c_squares, all_states);
  mine.x[place.lane] = x;
  __syncwarp();
  const StepSize step = MakeStep(p, dt_bias, a, dt);
  const int of_rows = place.lane / 8 * kRows;
  partial[place.warp * kPart + SumChannel(place.lane)] =
      StateStep(state, mine.b + of_rows, mine.c + of_rows, place.lane, step,
                reinterpret_cast<const float4*>(mine.x)[place.lane % 8]);
  StoreState<kVector>(state, states, p, place);
  __syncthreads();
  if (place.warp != 0 || !place.has_x) return;
  float y = fmaf(d, x, SumOfWarps(partial, static_cast<int>(blockDim.x) / 32, place.lane));
  if (p.gates) y *= MixerSilu(z);
  output[place.x_channel] = y;
  if (p.rounded_output != nullptr) {
    p.rounded_output[static_cast<long long>(run.row) * p.rounded_output_stride + place.x_channel] =
        __bfloat16_as_ushort(__float2bfloat16_rn(y));
  }
}

}  // namespace

void LaunchMamba2SelectedStep(const Mamba2SelectedParams& params, cudaStream_t stream) {
  const Mamba2Params& p = params.scan;
  if (p.run_count == 0) return;
  if (p.d_state > kMaxStateSize) {
    Fail("The CUDA backend handles states of up to ", kMaxStateSize, " elements a channel, not ",
         p.d_state, "; use --device cpu.");
  }
  const int warps = (p.d_state + kWarpRows - 1) / kWarpRows;
  const auto kernel = WithStored(p.ssm_dtype, [&]<class Stored>() {
    return p.head_dim % 4 == 0 ? Mamba2SelectedKernel<Stored, true>
                               : Mamba2SelectedKernel<Stored, false>;
  });
  Launch(
      "the Mamba-2 step kernel behind a selection", kernel,
      dim3(static_cast<unsigned>(p.heads), static_cast<unsigned>((p.head_dim + kPart - 1) / kPart),
           static_cast<unsigned>(p.run_count)),
      dim3(static_cast<unsigned>(warps * 32)), 0, stream, params);
}

}  // namespace adder::cuda
