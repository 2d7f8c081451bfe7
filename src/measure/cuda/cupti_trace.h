// Tracing of the GPU through CUPTI, NVIDIA's profiling library, which is loaded when it is needed.
#pragma once

#include <memory>

#include "measure/device_trace.h"

namespace adder {

enum class TraceDetail {
  kKernels,  // every kernel, also those within graphs; tracing makes short kernels slower
  kGraphs,   // a graph launch is one record, which hardly disturbs it
};

// One at a time in a process. Make it before anything else uses CUDA: graphs that were instantiated
// earlier are not seen.
class CuptiTrace {
 public:
  // Throws Error where CUPTI cannot be loaded, is too old or refuses.
  explicit CuptiTrace(TraceDetail detail);
  ~CuptiTrace();
  CuptiTrace(const CuptiTrace&) = delete;
  CuptiTrace& operator=(const CuptiTrace&) = delete;

  // Waits for the device, then records until End.
  void Begin();
  // Waits for the device. What that itself costs is not part of the trace.
  DeviceTrace End();

 private:
  class Library;
  std::unique_ptr<Library> library_;
};

}  // namespace adder
