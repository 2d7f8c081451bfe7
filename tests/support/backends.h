// The executors that the cross-room tests run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "program/executor.h"

namespace adder::test {

enum class Backend { kReference, kCpuF32, kCpuFast };

// For test names: "reference", "cpu_f32", "cpu_fast".
std::string BackendName(Backend backend);
const std::vector<Backend>& AllBackends();
// Whether the backend must agree with the reference to rounding.
bool IsExact(Backend backend);

std::unique_ptr<Executor> MakeExecutor(Backend backend, Program program);

}  // namespace adder::test
