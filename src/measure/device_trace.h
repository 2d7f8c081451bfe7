// What a GPU and its driver did in a span of time, as a tracer recorded it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace adder {

// One piece of work on the device. Times are nanoseconds of one clock.
struct TracedWork {
  std::string name;  // a kernel's plain name, "memcpy" or "memset"
  int64_t start = 0;
  int64_t end = 0;
};

struct DeviceTrace {
  std::vector<TracedWork> kernels;  // by start
  std::vector<TracedWork> memcpys;  // by start
  std::vector<TracedWork> memsets;  // by start
  int64_t host_copies = 0;          // memcpys that no graph contains
  int64_t stream_synchronizations = 0;
  int64_t device_synchronizations = 0;
  int64_t event_synchronizations = 0;
  std::map<std::string, int64_t> calls;  // of the CUDA runtime, by name
};

// The plain name of a kernel: "void a::(anonymous namespace)::Foo<4, true>(int)" is "Foo". Takes
// mangled names too.
std::string PlainKernelName(const std::string& name);

}  // namespace adder
