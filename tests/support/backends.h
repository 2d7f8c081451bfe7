// The executors that the cross-room tests run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "program/executor.h"

namespace adder::test {

// kCudaWide: kCudaFast with every batch of several tokens taking the way of long prompts.
enum class Backend { kReference, kCpuF32, kCpuFast, kCudaF32, kCudaFast, kCudaWide };

// For test names: "reference", "cpu_f32", "cuda_fast", ...
std::string BackendName(Backend backend);
// Those of this build; the CUDA ones only where there is a device.
const std::vector<Backend>& AllBackends();
// All but the reference.
const std::vector<Backend>& QuickBackends();
// Whether a token's result is bitwise the same in every batch.
bool IsBatchInvariant(Backend backend);
// Whether the backend must agree with the reference to rounding.
bool IsExact(Backend backend);

// The part of the program that the backend refuses to run, as UnsupportedPart in cuda/supported.h;
// empty where it runs all of it.
std::string RefusedPart(Backend backend, const Program& program);

std::unique_ptr<Executor> MakeExecutor(Backend backend, Program program);

}  // namespace adder::test
