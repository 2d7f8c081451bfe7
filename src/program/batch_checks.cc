#include "program/batch_checks.h"

#include <unordered_set>

#include "core/error.h"

namespace adder {

void CheckBatch(const Executor& executor, const Batch& batch) {
  const int64_t vocab = executor.program().plan->vocab;
  std::unordered_set<SequenceId> seen;
  for (const BatchEntry& entry : batch) {
    executor.Position(entry.sequence);  // throws for an unknown sequence
    if (!seen.insert(entry.sequence).second) {
      Fail("Sequence ", entry.sequence, " is in the batch twice.");
    }
    if (entry.tokens.empty()) {
      Fail("Sequence ", entry.sequence, " is in the batch without tokens.");
    }
    for (int32_t token : entry.tokens) {
      if (token < 0 || token >= vocab) {
        Fail("Token id ", token, " is outside the vocabulary of ", vocab, " tokens.");
      }
    }
  }
}

void CheckLastOp(const Program& program, int last_op) {
  if (last_op < 0 || last_op >= static_cast<int>(program.ops.size())) {
    Fail("Cannot stop after op ", last_op, ": the program has ops 0 to ", program.ops.size() - 1,
         ".");
  }
}

void CheckLogitsRow(const Executor& executor, int64_t row) {
  if (row < 0 || row >= executor.LogitsCount()) {
    Fail("There is no logits row ", row, ": the last batch asked for ", executor.LogitsCount(),
         ".");
  }
}

}  // namespace adder
