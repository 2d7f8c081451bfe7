// The step of a Mamba-2 mixer with a selection, between the selection and the gated norm.
#pragma once

#include "cuda/kernels/mamba1.h"
#include "cuda/kernels/mamba2.h"

namespace adder::cuda {

struct Mamba2SelectedParams {
  // Of the recurrence, its state, z (`projected`) and outputs; no convolution.
  Mamba2Params scan;
  const float* x = nullptr;  // [rows, x_stride], after the convolution and SiLU
  int x_stride = 0;
  // [rows, selected_stride]: B [groups * d_state] | C [groups * d_state] | dt [dt_rank]
  const float* selected = nullptr;
  int selected_stride = 0;
  int dt_rank = 0;
  SmallNorm b_norm;
  SmallNorm c_norm;
  SmallNorm dt_norm;
  const float* dt_rows = nullptr;    // [heads, dt_rank]: dt_proj
  const float* dt_offset = nullptr;  // [heads], dt_proj's bias; null: none
};

// One token per run: norms, dt, state and gate in one kernel that reads and writes each state
// element once. Results are those of LaunchSelection, dt_proj and LaunchMamba2Scan to rounding.
void LaunchMamba2SelectedStep(const Mamba2SelectedParams& params, cudaStream_t stream);

}  // namespace adder::cuda
