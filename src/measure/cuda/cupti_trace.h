// Tracing of the GPU through CUPTI, NVIDIA's profiling library, which is loaded when it is needed.
#pragma once

#include <memory>

#include "measure/device_trace.h"

namespace adder {

// Records every kernel, also those within graphs, and what else DeviceTrace holds. Tracing makes
// short kernels slower. One at a time in a process; graphs have to be made after it, and must not
// run once it is gone.
class CuptiTrace {
 public:
  // Throws Error where CUPTI cannot be loaded, is too old or refuses.
  CuptiTrace();
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
