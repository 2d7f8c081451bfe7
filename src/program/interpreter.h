// The oracle: runs a program with plain loops in f32, straight from the formulas. Slow on purpose.
#pragma once

#include <memory>

#include "program/executor.h"

namespace adder {

// Weights are read through DequantizeRow. Sums run in f64 so that the oracle's own rounding stays
// out of comparisons.
std::unique_ptr<Executor> MakeInterpreter(Program program);

}  // namespace adder
