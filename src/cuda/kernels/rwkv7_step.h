// The RWKV-7 mixer in steps, with the second matrices of its low-rank maps in the same launch.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/kernels/linear.h"
#include "cuda/kernels/rwkv7.h"

namespace adder::cuda {

// One of those matrices and what it reads: W x + bias.
struct Rwkv7Up {
  PackedMatrix matrix;           // [heads * head_dim, rank]; of the value mix, `rows` 0: none
  const float* bias = nullptr;   // [rows]; null: none
  const float* input = nullptr;  // [rows of the step, input_stride], on 16-byte boundaries
  int input_stride = 0;
};

// Of the mixer, decay, rate, gate and value_mix are not used: they are made here. Its runs have one
// token each, and there is no rounded output.
struct Rwkv7StepParams {
  Rwkv7Params mixer;
  Rwkv7Up decay;
  Rwkv7Up rate;
  Rwkv7Up gate;
  Rwkv7Up value_mix;
};

// Whether LaunchRwkv7Step takes them, whatever the inputs: heads of 32 or 64, matrices of the
// decay's format or of bf16, whose rows for a head fit in a block's shared memory, and not
// LinearShape::batch_invariant.
bool CanStepRwkv7(const Rwkv7StepParams& params, const LinearShape& shape);

void LaunchRwkv7Step(const Rwkv7StepParams& params, cudaStream_t stream);

}  // namespace adder::cuda
