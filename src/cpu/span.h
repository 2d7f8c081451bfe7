// The tokens of one sequence in a slice of a batch.
#pragma once

#include <cstdint>

#include "program/executor.h"

namespace adder {

// Rows [row, row + tokens) of the slice's buffers.
struct Span {
  SequenceId sequence;
  int64_t row;
  int64_t tokens;
  int64_t position;  // of the first of them
};

}  // namespace adder
