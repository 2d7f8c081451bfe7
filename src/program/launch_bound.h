// How many launches a decode step may take.
#pragma once

#include <cstdint>

#include "program/program.h"

namespace adder {

// Sequences of a step up to which a token shift behind a layer norm is one launch with all matrices
// that read it, and RWKV-7's recurrence one with the second matrices of its low-rank maps.
inline constexpr int64_t kMostJoinedSequences = 8;

// Kernels and copies that a device backend may run in one decode step for the ops of a layer, or,
// for layer -1, for what lies outside all layers and for choosing tokens. A backend that needs more
// has lost the fusion that programs are made for; `adder audit` counts.
// `joins`: of a step of at most kMostJoinedSequences sequences whose activations are not f32
// throughout.
int64_t MostLaunches(const Program& program, int64_t layer, bool joins = true);

}  // namespace adder
