// Where the time of a captured step goes.
#pragma once

#include <functional>
#include <vector>

#include "cuda/device_memory.h"
#include "program/step_profile.h"

namespace adder::cuda {

// How often a step runs between two calls of `rewind`.
inline constexpr int kTimedSteps = 24;

// Times the parts of a step. `launch(first, last)` puts parts [first, last) on the stream, as it
// does while a graph is captured; `rewind` sets the device back to before the first step.
//
// For every part the step is cut behind it into two graphs, which run one after the other: nothing
// but the cut differs from the whole step, so caches, states and the overlap of neighbouring
// kernels are those of decoding. Events around the first graph give the time up to the cut (the
// median of several steps), and a part's time is the difference to the cut before. The time that a
// graph needs to begin falls to the first part. Differences scatter by some tenths of a
// microsecond. Waits for the device.
std::vector<StepPart> TimeParts(const Stream& stream, int parts,
                                const std::function<void(int first, int last)>& launch,
                                const std::function<void()>& rewind);

}  // namespace adder::cuda
