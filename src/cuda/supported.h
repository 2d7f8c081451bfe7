// What of the vocabulary the CUDA backend has kernels for.
#pragma once

#include <string>
#include <type_traits>

#include "program/program.h"

namespace adder::cuda {

// Whether there are kernels for an op at all; CheckSupported refuses programs with others.
template <class Body>
inline constexpr bool kHasKernels = true;

// Whether the results of an op's matrix need a pass of their own, over which their rows' gates come
// (kernels/linear_finish.h).
bool NeedsFinish(const LinearOp& op);
// Whether that is all of it: the epilogue comes before, as of other ops.
bool GatesRowsAlone(const LinearOp& op);
// Whether the products then need a place of their own: they are wider than the output, or added to
// it.
bool FinishesApart(const LinearOp& op);
// Whether a matrix's norm is a pass of its own over the input.
bool NormsApart(const RmsNorm& norm);
// Whether the results of an op's matrices are made by a RowRule (kernels/linear.h): they are
// activated in another way than by silu(gate) * up, or scaled in a way that no single factor
// expresses.
bool NeedsRule(const LinearOp& op);
bool NeedsRule(const ExpertGateUpOp& op);
// Whether one factor expresses what a linear map does to its products: output = UniformFactor *
// (W x + bias).
bool HasUniformFactor(const Linear& linear);
float UniformFactor(const Linear& linear);

// The first part of the program that has no kernel ("layers.3.mlp.gate_up: an MLP without a gate"),
// or nothing when all have.
std::string UnsupportedPart(const Program& program);

// Throws Error naming that part.
void CheckSupported(const Program& program);

}  // namespace adder::cuda
