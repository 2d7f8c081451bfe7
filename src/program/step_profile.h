// What a decode step costs where, as executors that run whole steps on a device measure it.
#pragma once

#include <cstdint>
#include <vector>

namespace adder {

// What decode steps asked of the host since their stream began.
struct DecodeCounters {
  int64_t steps = 0;
  int64_t synchronizations = 0;  // calls that wait for all that a stream or the device has to do
  int64_t output_waits = 0;      // waits for the tokens of one step
  int64_t allocations = 0;       // of device or page-locked memory, taken or given back
  int64_t copies = 0;            // that the host asked for
  double prepare_seconds = 0;    // making room for the step, telling the device what has changed
  double launch_seconds = 0;     // handing the step to the device
  double wait_seconds = 0;       // waiting for its tokens
};

// Seconds of the host in one decode step. On a device that runs whole steps, `forward` is the call
// that starts one and `sample` is zero: the device does both while the host waits.
struct HostTimes {
  double prepare = 0;  // the batch, tables, memory
  double forward = 0;
  double sample = 0;
  double wait = 0;  // for the tokens of the step before, while this one runs
};

// What a stream's counters say of the time between two looks at them.
inline HostTimes HostTimesBetween(const DecodeCounters& before, const DecodeCounters& after) {
  return {after.prepare_seconds - before.prepare_seconds,
          after.launch_seconds - before.launch_seconds, 0,
          after.wait_seconds - before.wait_seconds};
}

// One part of a decode step. Parts are the ops of the program in order, then the choice of tokens.
struct StepPart {
  int64_t launches = 0;
  // By how much the step grows with this part: the time from the end of the part before to the end
  // of this one. What a part does while the one before still runs costs nothing.
  double seconds = 0;
};

}  // namespace adder
