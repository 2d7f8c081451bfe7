// The CUDA backend. No CUDA header is needed to use it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "program/executor.h"

namespace adder {

struct CudaOptions {
  // Activations keep all f32 bits: matches the reference to rounding. Otherwise they are rounded to
  // bf16 where they meet weights, and keys and values are kept as bf16.
  bool f32 = false;
  // Batches of at least so many tokens run through kernels for many tokens (not with f32).
  int wide_tokens = 65;
  // Tokens of such a batch that are run at once, a multiple of 128 in [512, 4096]; fewer where
  // there is too little memory.
  int wide_rows = 4096;
  // Those kernels keep bf16 copies of weights in up to so many bytes of device memory; negative: an
  // eighth of what is free at the first such batch.
  int64_t unpacked_bytes = -1;
  // Called as weights are loaded, with the part that is done, in [0, 1]. May be empty.
  std::function<void(double fraction)> progress = nullptr;
};

// Whether there is a CUDA device this build can run on; otherwise `reason` says what is missing.
bool CudaAvailable(std::string* reason = nullptr);

// Throws Error when there is no usable device, too little memory on it, or the program needs what
// the kernels lack.
std::unique_ptr<Executor> MakeCudaExecutor(Program program, const CudaOptions& options);

}  // namespace adder
