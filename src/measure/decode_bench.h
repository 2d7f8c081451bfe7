// Speed of one sequence: a prompt, then tokens one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "measure/decode_run.h"
#include "program/executor.h"

namespace adder {

struct DecodeBenchOptions {
  int64_t prompt_tokens = 512;
  int64_t max_tokens = 128;  // decode steps
  int repeat = 5;
  int warmup = 1;        // repeats that are not counted
  int64_t batch = 1;     // sequences decoded together
  bool profile = false;  // measure the parts of a step too, after the prompt
  std::function<void(int done, int all)> progress;
};

// Of several repeats.
struct Spread {
  double median = 0;
  double min = 0;
  double max = 0;
};
Spread SpreadOf(std::vector<double> values);

struct DecodeBenchResult {
  Spread prefill_rate;  // tokens per second
  Spread decode_rate;   // tokens per second of all sequences together
  // Seconds from one step's tokens to the next's, over all counted repeats.
  double step_seconds_p50 = 0;
  double step_seconds_p99 = 0;
  int64_t launches_per_step = 0;  // 0: the host runs the steps
  // Of one repeat's steps, when the device runs them.
  DecodeCounters device_counters;
  std::vector<HostTimes> host_times;  // of every counted step
  std::vector<StepPart> parts;        // empty unless asked for, or when the host runs the steps
  // Read and written per decode step at the middle of the run (costs of the program).
  int64_t weight_bytes = 0;
  int64_t state_bytes = 0;  // recurrent state
  int64_t kv_bytes = 0;     // keys and values
  int64_t batch = 1;
  int64_t bytes_per_step() const { return weight_bytes + state_bytes + kv_bytes; }
  double steps_per_second() const { return decode_rate.median / static_cast<double>(batch); }
};

// The prompt is random ids from a fixed seed; each next token is the most likely one, so that every
// step waits for the last as in real use. Throws Error for options out of range.
DecodeBenchResult RunDecodeBench(Executor& executor, const DecodeBenchOptions& options);

}  // namespace adder
