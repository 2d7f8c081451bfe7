#include "tests/support/backends.h"

#include <algorithm>

#include "core/error.h"
#include "cpu/cpu_executor.h"
#ifdef ADDER_HAS_CUDA
#include "cuda/cuda_executor.h"
#include "cuda/supported.h"
#endif
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
    case Backend::kCudaF32:
      return "cuda_f32";
    case Backend::kCudaFast:
      return "cuda_fast";
    case Backend::kCudaWide:
      return "cuda_wide";
  }
  return "unknown";
}

const std::vector<Backend>& AllBackends() {
  static const std::vector<Backend> backends = [] {
    std::vector<Backend> all{Backend::kReference, Backend::kCpuF32, Backend::kCpuFast};
#ifdef ADDER_HAS_CUDA
    if (CudaAvailable()) {
      all.insert(all.end(), {Backend::kCudaF32, Backend::kCudaFast, Backend::kCudaWide});
    }
#endif
    return all;
  }();
  return backends;
}

const std::vector<Backend>& QuickBackends() {
  static const std::vector<Backend> backends(AllBackends().begin() + 1, AllBackends().end());
  return backends;
}

bool IsBatchInvariant(Backend backend) {
  return backend != Backend::kCudaFast && backend != Backend::kCudaWide;
}

bool IsExact(Backend backend) { return backend != Backend::kCpuFast && IsBatchInvariant(backend); }

std::vector<Backend> ExactBackends() {
  std::vector<Backend> exact;
  for (const Backend backend : AllBackends()) {
    if (IsExact(backend)) exact.push_back(backend);
  }
  return exact;
}

namespace {

template <class... Bodies>
bool HasAny(const Program& program) {
  return std::any_of(program.ops.begin(), program.ops.end(),
                     [](const Op& op) { return (std::holds_alternative<Bodies>(op.body) || ...); });
}

}  // namespace

bool HasExperts(const Program& program) { return HasAny<RouterOp>(program); }
bool HasSelections(const Program& program) {
  return HasAny<Mamba1ScanOp, Mamba2SelectedOp, GatedDeltaOp>(program);
}

bool AmplifiesRounding(const Program& program) {
  return HasSelections(program) || HasAny<HeadsLinearOp, Rwkv7Op, UpdateOp>(program);
}

std::string UnsupportedPart([[maybe_unused]] Backend backend,
                            [[maybe_unused]] const Program& program) {
#ifdef ADDER_HAS_CUDA
  if (backend == Backend::kCudaF32 || !IsBatchInvariant(backend)) {
    return cuda::UnsupportedPart(program);
  }
#endif
  return {};
}

std::unique_ptr<Executor> MakeExecutor(Backend backend, Program program) {
  if (backend == Backend::kReference) return MakeInterpreter(std::move(program));
  if (backend == Backend::kCudaF32 || !IsBatchInvariant(backend)) {
#ifdef ADDER_HAS_CUDA
    CudaOptions options;
    options.f32 = backend == Backend::kCudaF32;
    if (backend == Backend::kCudaWide) {
      options.wide_tokens = 2;
      options.wide_rows = 1024;
      // Enough for some matrices only.
      options.unpacked_bytes = 100000;
    }
    return MakeCudaExecutor(std::move(program), options);
#else
    Fail("This build has no CUDA backend.");
#endif
  }
  CpuOptions options;
  // Work must be shared out even on one core for its seams to be tested.
  options.threads = 2;
  options.compute = backend == Backend::kCpuF32 ? Compute::kF32 : Compute::kFast;
  return MakeCpuExecutor(std::move(program), options);
}

}  // namespace adder::test
