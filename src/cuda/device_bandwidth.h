// How fast the GPU reads its memory.
#pragma once

#include <cstdint>

namespace adder {

struct DeviceBandwidth {
  double bytes_per_second = 0;
  int64_t buffer_bytes = 0;
};

// Reads a buffer many times the L2 cache, non-zero, several times; the median. Throws Error when
// there is no device or no memory for the buffer.
DeviceBandwidth ProbeDeviceBandwidth();

}  // namespace adder
