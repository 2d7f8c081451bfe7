// The CPU backend.
#pragma once

#include <functional>
#include <memory>

#include "program/executor.h"

namespace adder {

enum class Compute {
  kFast,  // activations quantised per group to int8 against quantised weights
  kF32,   // activations stay f32: matches the reference to rounding
};

struct CpuOptions {
  int threads = 0;  // 0: one per physical core available to the process
  Compute compute = Compute::kFast;
  // Called as weights are repacked, with the part that is done, in [0, 1]. May be empty.
  std::function<void(double fraction)> progress = nullptr;
};

// Repacks quantised weights for the kernels; releases the mapped source pages as it goes, so that
// peak memory stays near the checkpoint's size.
std::unique_ptr<Executor> MakeCpuExecutor(Program program, const CpuOptions& options);

// Name of the SIMD target the kernels dispatch to on this machine, e.g. "AVX3_DL".
const char* CpuSimdTarget();

}  // namespace adder
