// How fast this machine reads memory: the ceiling of decoding, which reads all weights per token.
#pragma once

#include <cstdint>

namespace adder {

struct BandwidthProbe {
  double bytes_per_second = 0;  // the best pass
  int64_t buffer_bytes = 0;
  int64_t cache_bytes = 0;  // largest cache, as the system tells; 0: unknown
  // Whether the buffer is so much larger than the cache that the figure is that of memory.
  bool beyond_cache() const { return buffer_bytes >= 3 * cache_bytes; }
};

// Reads a buffer with `threads` threads several times, each its own part front to back. The buffer
// is 1 GiB, or more where the largest cache asks for it, but at most a quarter of the memory that
// is free. Throws Error when memory for it cannot be had.
BandwidthProbe ProbeReadBandwidth(int threads);

// Largest resident memory of this process so far, in bytes.
int64_t PeakResidentBytes();

}  // namespace adder
