// What of the vocabulary the CUDA backend has kernels for.
#pragma once

#include <string>

#include "program/program.h"

namespace adder::cuda {

// Whether the results of an op's matrices need a pass of their own (kernels/linear_finish.h): they
// are activated in another way than by silu(gate) * up, or scaled in a way that no single factor
// expresses. Their matrices are not interleaved.
bool NeedsFinish(const LinearOp& op);
bool NeedsFinish(const ExpertGateUpOp& op);
// The factor of a linear map's products where they need no pass: output = factor * (W x + bias).
float UniformFactor(const Linear& linear);

// The first part of the program that has no kernel ("layers.3.mlp.gate_up: an MLP without a gate"),
// or nothing when all have.
std::string UnsupportedPart(const Program& program);

// Throws Error naming that part.
void CheckSupported(const Program& program);

}  // namespace adder::cuda
