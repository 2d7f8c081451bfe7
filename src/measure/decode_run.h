// Decoding for measurements: sequences with one random prompt, continued by the most likely tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "program/executor.h"

namespace adder {

// Ids from a fixed seed, the same for every call.
std::vector<int32_t> RandomPrompt(int64_t vocab, int64_t tokens);

// Several sequences in lockstep. Every step waits for the tokens of the last, as in real use.
class DecodeRun {
 public:
  DecodeRun(Executor& executor, int64_t batch);
  ~DecodeRun();
  DecodeRun(const DecodeRun&) = delete;
  DecodeRun& operator=(const DecodeRun&) = delete;

  // Runs the prompt in every sequence, from its beginning.
  void Prefill(std::span<const int32_t> prompt);
  // Gets ready for `steps` steps.
  void StartDecode(int64_t steps);
  void Step();

  // Null when the host runs the steps, or before StartDecode.
  const DecodeStream* stream() const { return stream_.get(); }
  // Of the last Step.
  const HostTimes& times() const { return times_; }
  // The parts of a step that would follow now; empty when the host runs the steps. Ends decoding:
  // Prefill begins anew.
  std::vector<StepPart> Profile();

 private:
  std::vector<DecodeRow> Rows() const;
  void StepOnHost();

  Executor& executor_;
  std::vector<SequenceId> ids_;
  std::vector<int32_t> tokens_;
  std::unique_ptr<DecodeStream> stream_;
  int64_t left_ = 0;
  int64_t unread_ = 0;
  HostTimes times_;
};

}  // namespace adder
