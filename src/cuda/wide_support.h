// What of the vocabulary long slices have kernels for.
#pragma once

#include <string>

#include "model/plan.h"
#include "program/program.h"

namespace adder::cuda {

// Whether LaunchBf16Norm has such a norm, which reads groups four values at a time; true for none.
bool NormsRows(const std::optional<RmsNorm>& norm, int64_t width);

// Whether what becomes of an op's products is a pass of kernels/linear_finish.h, which knows all.
bool FinishesProducts(const LinearOp& op);

// The first part of the program that WideOps has no kernel for ("layers.3.rwkv7.scan: RWKV-7 heads
// of 128"), or nothing when it has all.
std::string PartWithoutWideKernel(const Program& program);

}  // namespace adder::cuda
