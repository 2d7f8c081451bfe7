// How many launches a decode step may take.
#pragma once

#include <cstdint>

#include "program/program.h"

namespace adder {

// Kernels and copies that a device backend may run in one decode step for the ops of a layer, or,
// for layer -1, for what lies outside all layers and for choosing tokens. A backend that needs more
// has lost the fusion that programs are made for; `adder audit` counts.
int64_t MostLaunches(const Program& program, int64_t layer);

}  // namespace adder
