#include "cuda/part_timing.h"

#include <algorithm>

#include "cuda/cuda_call.h"

namespace adder::cuda {
namespace {

// The first steps after a rewind find other caches than those that follow.
constexpr int kWarmSteps = 4;

float MedianOf(std::vector<float> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

std::vector<StepPart> TimeParts(const Stream& stream, int parts,
                                const std::function<void(int first, int last)>& launch,
                                const std::function<void()>& rewind) {
  std::vector<Event> begins;
  std::vector<Event> ends;
  for (int i = 0; i < kTimedSteps; ++i) {
    begins.emplace_back(/*timing=*/true);
    ends.emplace_back(/*timing=*/true);
  }
  std::vector<StepPart> result;
  int64_t nodes_before = 0;
  double seconds_before = 0;
  for (int cut = 1; cut <= parts; ++cut) {
    const Graph head = Graph::Capture(stream, [&] { launch(0, cut); });
    const Graph tail = cut < parts ? Graph::Capture(stream, [&] { launch(cut, parts); }) : Graph();
    rewind();
    for (int i = 0; i < kTimedSteps; ++i) {
      const auto index = static_cast<size_t>(i);
      begins[index].Record(stream);
      head.Launch(stream);
      ends[index].Record(stream);
      if (tail) tail.Launch(stream);
    }
    stream.Synchronize();
    std::vector<float> milliseconds;
    for (size_t i = kWarmSteps; i < kTimedSteps; ++i) {
      milliseconds.emplace_back();
      Check(cudaEventElapsedTime(&milliseconds.back(), begins[i].get(), ends[i].get()),
            "cudaEventElapsedTime");
    }
    const double seconds = static_cast<double>(MedianOf(std::move(milliseconds))) * 1e-3;
    result.push_back({head.nodes() - nodes_before, seconds - seconds_before});
    nodes_before = head.nodes();
    seconds_before = seconds;
  }
  return result;
}

}  // namespace adder::cuda
