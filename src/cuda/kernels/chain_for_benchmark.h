// Timing kernels in a chain of many inside one graph, as they run in a decode step.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "cuda/cuda_call.h"
#include "cuda/device_memory.h"

namespace adder::cuda {

struct ChainTimes {  // microseconds per kernel
  float median;
  float least;
  float most;
};

// `launch` puts the i-th of `length` kernels on the stream.
inline ChainTimes TimeChain(const Stream& stream, int length, int repeats,
                            const std::function<void(int)>& launch) {
  const Graph graph = Graph::Capture(stream, [&] {
    for (int i = 0; i < length; ++i) launch(i);
  });
  std::vector<float> times;
  const Event begin(true);
  const Event end(true);
  for (int i = 0; i < repeats + 2; ++i) {
    begin.Record(stream);
    graph.Launch(stream);
    end.Record(stream);
    stream.Synchronize();
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()), "cudaEventElapsedTime");
    if (i >= 2) times.push_back(milliseconds * 1e3f / static_cast<float>(length));
  }
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

}  // namespace adder::cuda
