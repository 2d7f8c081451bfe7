#include "program/host_executor.h"

#include <unordered_set>
#include <utility>

#include "core/error.h"

namespace adder {

HostExecutor::HostExecutor(Program program)
    : program_((VerifyProgram(program), std::move(program))), state_(program_.layout) {}

void HostExecutor::CheckBatch(const Batch& batch) const {
  const int64_t vocab = program_.plan->vocab;
  std::unordered_set<SequenceId> seen;
  for (const BatchEntry& entry : batch) {
    state_.Position(entry.sequence);  // throws for an unknown sequence
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

void HostExecutor::CheckLastOp(int last_op) const {
  if (last_op < 0 || last_op >= static_cast<int>(program_.ops.size())) {
    Fail("Cannot stop after op ", last_op, ": the program has ops 0 to ", program_.ops.size() - 1,
         ".");
  }
}

void HostExecutor::CheckLogitsRow(int64_t row) const {
  if (row < 0 || row >= LogitsCount()) {
    Fail("There is no logits row ", row, ": the last batch asked for ", LogitsCount(), ".");
  }
}

int64_t HostExecutor::VectorBytes() const {
  int64_t total = 0;
  for (const std::vector<float>& vector : program_.weights->vectors) {
    total += static_cast<int64_t>(vector.size() * sizeof(float));
  }
  return total;
}

}  // namespace adder
