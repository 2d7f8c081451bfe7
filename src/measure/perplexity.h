// How well a model predicts a text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "program/executor.h"

namespace adder {

struct PerplexityOptions {
  int64_t window = 1024;  // tokens of the text per window
  int32_t begin_id = -1;  // put in front of every window; -1: nothing is
  std::function<void(double fraction)> progress;
};

struct PerplexityResult {
  double nats = 0;  // sum of the negative log-likelihoods of the scored tokens
  int64_t scored_tokens = 0;
  int64_t windows = 0;

  double NatsPerToken() const { return scored_tokens > 0 ? nats / scored_tokens : 0; }
};

// Cuts `tokens` into consecutive windows that do not overlap; each is run from an empty state with
// begin_id in front, so that every token is scored. Without a begin_id the first token of each
// window only serves as context. Throws Error when no token can be scored.
PerplexityResult MeasurePerplexity(Executor& executor, std::span<const int32_t> tokens,
                                   const PerplexityOptions& options);

// -log softmax(logits)[target], in f64.
double NegativeLogLikelihood(std::span<const float> logits, int32_t target);

}  // namespace adder
