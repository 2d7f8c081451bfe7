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
// Those of AllBackends() that must.
std::vector<Backend> ExactBackends();

// Of a program, for tolerances: whether tokens choose experts, and whether a state magnifies
// rounding: its step sizes are products of products, or its answers are normed head by head.
bool HasExperts(const Program& program);
bool HasSelections(const Program& program);
// Whether rounding errors grow on their way for that reason or others: adapters are products of
// products too, and norms behind each part of a block scale what it adds up.
bool AmplifiesRounding(const Program& program);

// What of the program the backend has no kernel for; nothing when it runs it.
std::string UnsupportedPart(Backend backend, const Program& program);
std::unique_ptr<Executor> MakeExecutor(Backend backend, Program program);

}  // namespace adder::test
