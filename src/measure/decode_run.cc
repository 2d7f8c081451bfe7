#include "measure/decode_run.h"

#include <algorithm>
#include <chrono>

#include "engine/sampler.h"

namespace adder {
namespace {

using Clock = std::chrono::steady_clock;

constexpr uint64_t kPromptSeed = 1;

double SecondsBetween(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

}  // namespace

std::vector<int32_t> RandomPrompt(int64_t vocab, int64_t tokens) {
  RandomStream random(kPromptSeed);
  std::vector<int32_t> prompt(static_cast<size_t>(tokens));
  for (int32_t& id : prompt) {
    id = static_cast<int32_t>(random.Next() % static_cast<uint64_t>(vocab));
  }
  return prompt;
}

DecodeRun::DecodeRun(Executor& executor, int64_t batch) : executor_(executor) {
  for (int64_t i = 0; i < batch; ++i) ids_.push_back(executor.CreateSequence());
}

DecodeRun::~DecodeRun() {
  stream_.reset();
  for (SequenceId id : ids_) executor_.FreeSequence(id);
}

void DecodeRun::Prefill(std::span<const int32_t> prompt) {
  stream_.reset();
  Batch batch;
  for (SequenceId id : ids_) {
    executor_.ResetSequence(id);
    batch.push_back({id, prompt, LogitsRows::kLast});
  }
  executor_.Forward(batch);
  tokens_.clear();
  for (size_t i = 0; i < ids_.size(); ++i) {
    tokens_.push_back(Greedy(executor_.Logits(static_cast<int64_t>(i))));
  }
}

std::vector<DecodeRow> DecodeRun::Rows() const {
  std::vector<DecodeRow> rows(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) {
    rows[i].sequence = ids_[i];
    rows[i].token = tokens_[i];
  }
  return rows;
}

void DecodeRun::StartDecode(int64_t steps) {
  stream_.reset();
  stream_ = executor_.StartDecode(Rows());
  left_ = steps;
  unread_ = 0;
}

void DecodeRun::Step() {
  if (!stream_) return StepOnHost();
  const DecodeCounters before = stream_->Counters();
  // One step ahead, as generation does.
  for (; unread_ < std::min<int64_t>(2, left_); ++unread_) stream_->Enqueue();
  const std::span<const int32_t> chosen = stream_->Read();
  std::copy(chosen.begin(), chosen.end(), tokens_.begin());
  --unread_;
  --left_;
  times_ = HostTimesBetween(before, stream_->Counters());
}

void DecodeRun::StepOnHost() {
  const auto start = Clock::now();
  Batch batch;
  for (size_t i = 0; i < ids_.size(); ++i) {
    batch.push_back({ids_[i], std::span(&tokens_[i], 1), LogitsRows::kLast});
  }
  const auto prepared = Clock::now();
  executor_.Forward(batch);
  const auto run = Clock::now();
  // The first row waits for the device where there is one.
  static_cast<void>(executor_.Logits(0));
  const auto waited = Clock::now();
  for (size_t i = 0; i < ids_.size(); ++i) {
    tokens_[i] = Greedy(executor_.Logits(static_cast<int64_t>(i)));
  }
  times_ = {SecondsBetween(start, prepared), SecondsBetween(prepared, run),
            SecondsBetween(waited, Clock::now()), SecondsBetween(run, waited)};
}

std::vector<StepPart> DecodeRun::Profile() {
  stream_.reset();
  return executor_.ProfileDecode(Rows());
}

}  // namespace adder
