// What was asked of CUDA, counted where it is asked.
#pragma once

#include <cstdint>

namespace adder::cuda {

// Calls of one thread that cost a step time: the owners of device_memory.h count their own, and who
// calls CUDA past them adds to it.
struct CallCounts {
  int64_t synchronizations = 0;  // of a stream or the device
  int64_t event_waits = 0;
  int64_t allocations = 0;  // taken or given back; giving back waits for the device
  int64_t copies = 0;       // that no graph started
};

// This thread's.
inline CallCounts& Calls() {
  thread_local CallCounts calls;
  return calls;
}

}  // namespace adder::cuda
