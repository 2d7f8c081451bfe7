// Prompts that mostly extend each other, as the turns of a conversation do: what was run for one is
// not run again for the next.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/generation.h"

namespace adder {

// Recurrent state cannot be truncated, only restored. So a session is kept that has run everything
// so far, its output included, and a snapshot of it from before the last answer, for prompts that
// write that answer differently (templates drop reasoning, trim, or end a turn another way).
class PromptReuse {
 public:
  PromptReuse(Executor& executor, const text::Tokenizer* tokenizer)
      : executor_(&executor), tokenizer_(tokenizer), session_(NewSession()) {}

  struct Loaded {
    size_t reused = 0;  // tokens of the prompt whose state was there
    size_t run = 0;     // tokens that were run
    double seconds = 0;
    bool cancelled = false;
  };
  // Leaves session() with a proper prefix of `prompt` as its tokens, the longest whose state is
  // kept or is worth keeping: the first `stable` tokens of it, those that the next prompts are
  // expected to begin with, are run now and become the snapshot. What is left of the prompt is for
  // session().Begin. Throws Error for an empty prompt and bad ids.
  Loaded Load(std::span<const int32_t> prompt, size_t stable, const std::atomic<bool>* cancel);

  GenerationSession& session() { return *session_; }
  const GenerationSession& session() const { return *session_; }
  // Forgets everything.
  void Reset();

 private:
  std::unique_ptr<GenerationSession> NewSession() const {
    return std::make_unique<GenerationSession>(*executor_, tokenizer_);
  }

  Executor* executor_;
  const text::Tokenizer* tokenizer_;
  std::unique_ptr<GenerationSession> session_;
  std::unique_ptr<GenerationSession> snapshot_;  // null: none
};

}  // namespace adder
