// Checks that every executor makes of what it is asked.
#pragma once

#include "program/executor.h"

namespace adder {

// Throws Error, with nothing changed, for an unknown sequence, one that is in the batch twice or
// without tokens, or a token id outside the vocabulary.
void CheckBatch(const Executor& executor, const Batch& batch);
// Throws Error when `last_op` is no index into the program's ops.
void CheckLastOp(const Program& program, int last_op);
// Throws Error when `row` is not one of the last batch's logits rows.
void CheckLogitsRow(const Executor& executor, int64_t row);

}  // namespace adder
