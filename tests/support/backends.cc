#include "tests/support/backends.h"

#include "cpu/cpu_executor.h"
#include "program/interpreter.h"

namespace adder::test {

std::string BackendName(Backend backend) {
  switch (backend) {
    case Backend::kReference:
      return "reference";
    case Backend::kCpuF32:
      return "cpu_f32";
    case Backend::kCpuFast:
      return "cpu_fast";
  }
  return "unknown";
}

const std::vector<Backend>& AllBackends() {
  static const std::vector<Backend> backends{Backend::kReference, Backend::kCpuF32,
                                             Backend::kCpuFast};
  return backends;
}

bool IsExact(Backend backend) { return backend != Backend::kCpuFast; }

std::unique_ptr<Executor> MakeExecutor(Backend backend, Program program) {
  if (backend == Backend::kReference) return MakeInterpreter(std::move(program));
  CpuOptions options;
  // Work must be shared out even on one core for its seams to be tested.
  options.threads = 2;
  options.compute = backend == Backend::kCpuF32 ? Compute::kF32 : Compute::kFast;
  return MakeCpuExecutor(std::move(program), options);
}

}  // namespace adder::test
