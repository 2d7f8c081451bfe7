// What of the vocabulary the CUDA backend has kernels for.
#pragma once

#include <string>

#include "program/program.h"

namespace adder::cuda {

// The first part of the program that has no kernel ("layers.3.mlp.gate_up: an MLP without a gate"),
// or nothing when all have.
std::string UnsupportedPart(const Program& program);

// Throws Error naming that part.
void CheckSupported(const Program& program);

}  // namespace adder::cuda
