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

// The sequences of a bench.
class Sequences {
 public:
  Sequences(Executor& executor, int64_t count) : executor_(executor) {
    for (int64_t i = 0; i < count; ++i) ids_.push_back(executor.CreateSequence());
  }
  ~Sequences() {
    for (SequenceId id : ids_) executor_.FreeSequence(id);
  }
  Sequences(const Sequences&) = delete;
  Sequences& operator=(const Sequences&) = delete;
  const std::vector<SequenceId>& ids() const { return ids_; }

 private:
  Executor& executor_;
  std::vector<SequenceId> ids_;
};

// Runs one decode step after the other, each on the tokens that the one before chose.
class Stepper {
 public:
  Stepper(Executor& executor, const std::vector<SequenceId>& ids, std::vector<int32_t> tokens,
          int64_t steps)
      : executor_(executor), ids_(ids), tokens_(std::move(tokens)), left_(steps) {
    std::vector<DecodeRow> rows(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      rows[i].sequence = ids[i];
      rows[i].token = tokens_[i];
    }
    stream_ = executor.StartDecode(rows);
  }
  int64_t launches() const { return stream_ ? stream_->LaunchesPerStep() : 0; }

  void Step() {
    if (stream_) {
      // One step ahead, as generation does.
      for (; unread_ < std::min<int64_t>(2, left_); ++unread_) stream_->Enqueue();
      stream_->Read();
      --unread_;
      --left_;
      return;
    }
    Batch batch;
    for (size_t i = 0; i < ids_.size(); ++i) {
      batch.push_back({ids_[i], std::span(&tokens_[i], 1), LogitsRows::kLast});
    }
    executor_.Forward(batch);
    for (size_t i = 0; i < ids_.size(); ++i) {
      tokens_[i] = Greedy(executor_.Logits(static_cast<int64_t>(i)));
    }
  }

 private:
  Executor& executor_;
  const std::vector<SequenceId>& ids_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<DecodeStream> stream_;
  int64_t left_;
  int64_t unread_ = 0;
};

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

  const int64_t vocab = executor.program().plan->vocab;
  RandomStream random(kPromptSeed);
  std::vector<int32_t> prompt(static_cast<size_t>(options.prompt_tokens));
  for (int32_t& id : prompt) {
    id = static_cast<int32_t>(random.Next() % static_cast<uint64_t>(vocab));
  }

  std::vector<double> prefill_rates;
  std::vector<double> decode_rates;
  std::vector<double> step_seconds;
  DecodeBenchResult result;
  const Sequences sequences(executor, options.batch);
  const int all = options.warmup + options.repeat;
  for (int i = 0; i < all; ++i) {
    Batch batch;
    for (SequenceId id : sequences.ids()) {
      executor.ResetSequence(id);
      batch.push_back({id, prompt, LogitsRows::kLast});
    }
    auto start = Clock::now();
    executor.Forward(batch);
    std::vector<int32_t> tokens;
    for (int64_t row = 0; row < options.batch; ++row) {
      tokens.push_back(Greedy(executor.Logits(row)));
    }
    const double prefill_seconds = SecondsSince(start);
    Stepper stepper(executor, sequences.ids(), std::move(tokens), options.max_tokens);
    result.launches_per_step = stepper.launches();
    const bool counts = i >= options.warmup;
    start = Clock::now();
    auto last = start;
    for (int64_t step = 0; step < options.max_tokens; ++step) {
      stepper.Step();
      const auto now = Clock::now();
      if (counts) step_seconds.push_back(std::chrono::duration<double>(now - last).count());
      last = now;
    }
    const double decode_seconds = SecondsSince(start);
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
  const OpCost step = CostOf(executor.program(), options.batch, options.batch,
                             options.prompt_tokens + options.max_tokens / 2);
  result.weight_bytes = step.weight_bytes;
  result.state_bytes = step.state_bytes;
  return result;
}

}  // namespace adder
