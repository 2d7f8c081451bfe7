#include "program/host_executor.h"

#include <utility>

namespace adder {

HostExecutor::HostExecutor(Program program)
    : program_((VerifyProgram(program), std::move(program))), state_(program_.layout) {}

int64_t HostExecutor::VectorBytes() const {
  int64_t total = 0;
  for (const std::vector<float>& vector : program_.weights->vectors) {
    total += static_cast<int64_t>(vector.size() * sizeof(float));
  }
  return total;
}

}  // namespace adder
