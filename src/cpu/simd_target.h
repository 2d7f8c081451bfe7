// Which SIMD instruction set the kernels run on.
#pragma once

#include <string>
#include <vector>

namespace adder {

// Names of the targets compiled into this binary that this machine can run, best first, e.g.
// {"AVX3_DL", "AVX3", "AVX2", "SSE4", "SSSE3", "EMU128"}.
std::vector<std::string> SimdTargets();

// Restricts the kernels to one of SimdTargets(); an empty name means the best. Not thread-safe: no
// kernel may be running, and buffers prepared by one target must not be read by another. Throws
// Error for an unknown name.
void UseSimdTarget(const std::string& name);

// Applies the environment variable ADDER_SIMD (a name of SimdTargets()), once per process.
void UseSimdTargetFromEnvironment();

}  // namespace adder
