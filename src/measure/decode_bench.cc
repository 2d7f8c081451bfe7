#include "measure/decode_bench.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "core/error.h"
#include "engine/sampler.h"

namespace adder {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPromptSeed = 1;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class SequenceOwner {
 public:
  explicit SequenceOwner(Executor& executor)
      : executor_(executor), id_(executor.CreateSequence()) {}
  ~SequenceOwner() { executor_.FreeSequence(id_); }
  SequenceOwner(const SequenceOwner&) = delete;
  SequenceOwner& operator=(const SequenceOwner&) = delete;
  SequenceId id() const { return id_; }

 private:
  Executor& executor_;
  SequenceId id_;
};

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
  CheckRange("number of repeats", options.repeat, 1, 10000);
  CheckRange("number of warm-up repeats", options.warmup, 0, 10000);

  const int64_t vocab = executor.program().plan->vocab;
  RandomStream random(kPromptSeed);
  std::vector<int32_t> prompt(static_cast<size_t>(options.prompt_tokens));
  for (int32_t& id : prompt) {
    id = static_cast<int32_t>(random.Next() % static_cast<uint64_t>(vocab));
  }

  std::vector<double> prefill_rates;
  std::vector<double> decode_rates;
  const SequenceOwner sequence(executor);
  const int all = options.warmup + options.repeat;
  for (int i = 0; i < all; ++i) {
    executor.ResetSequence(sequence.id());
    auto start = Clock::now();
    executor.Forward({{sequence.id(), prompt, LogitsRows::kLast}});
    int32_t token = Greedy(executor.Logits(0));
    const double prefill_seconds = SecondsSince(start);
    start = Clock::now();
    for (int64_t step = 0; step < options.max_tokens; ++step) {
      executor.Forward({{sequence.id(), std::span(&token, 1), LogitsRows::kLast}});
      token = Greedy(executor.Logits(0));
    }
    const double decode_seconds = SecondsSince(start);
    if (i >= options.warmup) {
      prefill_rates.push_back(static_cast<double>(options.prompt_tokens) / prefill_seconds);
      decode_rates.push_back(static_cast<double>(options.max_tokens) / decode_seconds);
    }
    if (options.progress) options.progress(i + 1, all);
  }

  DecodeBenchResult result;
  result.prefill_rate = SpreadOf(std::move(prefill_rates));
  result.decode_rate = SpreadOf(std::move(decode_rates));
  const OpCost step =
      CostOf(executor.program(), 1, 1, options.prompt_tokens + options.max_tokens / 2);
  result.weight_bytes = step.weight_bytes;
  result.state_bytes = step.state_bytes;
  return result;
}

}  // namespace adder
