#include "engine/prompt_reuse.h"

#include <algorithm>
#include <chrono>

#include "core/error.h"

namespace adder {
namespace {

bool BeginsWith(std::span<const int32_t> prompt, std::span<const int32_t> tokens) {
  return tokens.size() < prompt.size() && std::equal(tokens.begin(), tokens.end(), prompt.begin());
}

}  // namespace

PromptReuse::Loaded PromptReuse::Load(std::span<const int32_t> prompt, size_t stable,
                                      const std::atomic<bool>* cancel) {
  if (prompt.empty()) Fail("The prompt is empty: there is nothing to continue.");
  if (snapshot_ && !BeginsWith(prompt, snapshot_->tokens())) snapshot_.reset();
  if (!BeginsWith(prompt, session_->tokens())) {
    // The old state goes first, so that no more than two are there at a time.
    session_.reset();
    session_ = snapshot_ ? snapshot_->Fork() : NewSession();
  }
  Loaded loaded;
  loaded.reused = session_->tokens_run();
  const size_t present = session_->tokens().size();
  stable = std::min(stable, prompt.size() - 1);
  if (stable <= present) return loaded;
  const auto start = std::chrono::steady_clock::now();
  snapshot_.reset();
  loaded.cancelled = !session_->Prefill(prompt.subspan(present, stable - present), cancel);
  if (!loaded.cancelled) snapshot_ = session_->Fork();
  loaded.run = session_->tokens_run() - loaded.reused;
  loaded.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loaded;
}

void PromptReuse::Reset() {
  snapshot_.reset();
  session_->Reset();
}

}  // namespace adder
