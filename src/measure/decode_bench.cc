#include "measure/decode_bench.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "measure/step_report.h"

namespace adder {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Percentile(const std::vector<double>& sorted, double part) {
  return sorted.empty()
             ? 0
             : sorted[static_cast<size_t>(part * static_cast<double>(sorted.size() - 1))];
}

void CheckRange(const char* name, int64_t value, int64_t min, int64_t max) {
  if (value < min || value > max) {
    Fail("The bench's ", name, " is ", value, "; it must be from ", min, " to ", max, ".");
  }
}

}  // namespace

Spread SpreadOf(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
  return {median, values.front(), values.back()};
}

DecodeBenchResult RunDecodeBench(Executor& executor, const DecodeBenchOptions& options) {
  CheckRange("number of prompt tokens", options.prompt_tokens, 1, 1 << 24);
  CheckRange("number of tokens to decode", options.max_tokens, 1, 1 << 24);
  CheckRange("number of sequences", options.batch, 1, 256);
  CheckRange("number of repeats", options.repeat, 1, 10000);
  CheckRange("number of warm-up repeats", options.warmup, 0, 10000);

  const std::vector<int32_t> prompt =
      RandomPrompt(executor.program().plan->vocab, options.prompt_tokens);
  std::vector<double> prefill_rates;
  std::vector<double> decode_rates;
  std::vector<double> step_seconds;
  DecodeBenchResult result;
  DecodeRun run(executor, options.batch);
  const int all = options.warmup + options.repeat;
  for (int i = 0; i < all; ++i) {
    auto start = Clock::now();
    run.Prefill(prompt);
    const double prefill_seconds = SecondsSince(start);
    run.StartDecode(options.max_tokens);
    const bool counts = i >= options.warmup;
    start = Clock::now();
    auto last = start;
    for (int64_t step = 0; step < options.max_tokens; ++step) {
      run.Step();
      const auto now = Clock::now();
      if (counts) {
        step_seconds.push_back(std::chrono::duration<double>(now - last).count());
        result.host_times.push_back(run.times());
      }
      last = now;
    }
    const double decode_seconds = SecondsSince(start);
    if (counts && run.stream() != nullptr) {
      result.launches_per_step = run.stream()->LaunchesPerStep();
      result.device_counters = run.stream()->Counters();
    }
    if (counts) {
      prefill_rates.push_back(static_cast<double>(options.batch * options.prompt_tokens) /
                              prefill_seconds);
      decode_rates.push_back(static_cast<double>(options.batch * options.max_tokens) /
                             decode_seconds);
    }
    if (options.progress) options.progress(i + 1, all);
  }

  result.prefill_rate = SpreadOf(std::move(prefill_rates));
  result.decode_rate = SpreadOf(std::move(decode_rates));
  std::sort(step_seconds.begin(), step_seconds.end());
  result.batch = options.batch;
  result.step_seconds_p50 = Percentile(step_seconds, 0.5);
  result.step_seconds_p99 = Percentile(step_seconds, 0.99);
  const int64_t middle = options.prompt_tokens + options.max_tokens / 2;
  for (size_t i = 0; i < executor.program().ops.size(); ++i) {
    const StepBytes bytes = BytesOfOp(executor.program(), static_cast<int>(i), options.batch,
                                      middle, executor.DecodeTraffic());
    result.weight_bytes += bytes.weights;
    result.state_bytes += bytes.recurrent;
    result.kv_bytes += bytes.kv;
  }
  if (options.profile) {
    run.Prefill(prompt);
    result.parts = run.Profile();
  }
  return result;
}

}  // namespace adder
