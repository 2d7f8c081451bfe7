// An executor without a model: its logits are a function of the tokens so far.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "program/executor.h"

namespace adder {

class FakeExecutor : public Executor {
 public:
  using LogitsOf = std::function<std::vector<float>(const std::vector<int32_t>& tokens)>;

  FakeExecutor(int64_t vocab, LogitsOf logits) : logits_of_(std::move(logits)) {
    auto plan = std::make_shared<Plan>();
    plan->family = "fake";
    plan->vocab = vocab;
    program_.plan = std::move(plan);
  }

  std::string Description() const override { return "fake"; }
  const Program& program() const override { return program_; }
  SequenceId CreateSequence() override {
    sequences_[next_] = {};
    return next_++;
  }
  void FreeSequence(SequenceId sequence) override { sequences_.erase(sequence); }
  void ResetSequence(SequenceId sequence) override { sequences_.at(sequence).clear(); }
  int64_t Position(SequenceId sequence) const override {
    return static_cast<int64_t>(sequences_.at(sequence).size());
  }
  void Forward(const Batch& batch) override {
    rows_.clear();
    for (const BatchEntry& entry : batch) {
      chunks_.push_back(entry.tokens.size());
      std::vector<int32_t>& tokens = sequences_.at(entry.sequence);
      for (size_t i = 0; i < entry.tokens.size(); ++i) {
        tokens.push_back(entry.tokens[i]);
        const bool last = i + 1 == entry.tokens.size();
        if (entry.logits == LogitsRows::kAll || (entry.logits == LogitsRows::kLast && last)) {
          rows_.push_back(logits_of_(tokens));
        }
      }
    }
  }
  std::vector<float> ForwardUntil(const Batch&, int) override { Fail("FakeExecutor has no ops."); }
  int64_t LogitsCount() const override { return static_cast<int64_t>(rows_.size()); }
  std::span<const float> Logits(int64_t row) const override {
    return rows_.at(static_cast<size_t>(row));
  }
  SequenceId CopySequence(SequenceId sequence) override {
    sequences_[next_] = sequences_.at(sequence);
    return next_++;
  }
  std::vector<std::byte> ExportSequence(SequenceId) const override { return {}; }
  SequenceId ImportSequence(std::span<const std::byte>) override { return CreateSequence(); }
  int64_t WeightBytes() const override { return 0; }
  int64_t StateBytes() const override { return 0; }

  size_t sequence_count() const { return sequences_.size(); }
  // Sizes of the pieces that were run, in order.
  const std::vector<size_t>& chunks() const { return chunks_; }

 private:
  LogitsOf logits_of_;
  Program program_;
  SequenceId next_ = 0;
  std::map<SequenceId, std::vector<int32_t>> sequences_;
  std::vector<std::vector<float>> rows_;
  std::vector<size_t> chunks_;
};

// Logits that make `next(tokens)` the most likely token by far.
inline FakeExecutor::LogitsOf Always(
    int64_t vocab, std::function<int32_t(const std::vector<int32_t>& tokens)> next) {
  return [vocab, next = std::move(next)](const std::vector<int32_t>& tokens) {
    std::vector<float> logits(static_cast<size_t>(vocab), -10.0f);
    logits[static_cast<size_t>(next(tokens))] = 10.0f;
    return logits;
  };
}

}  // namespace adder
