#include "measure/perplexity.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/error.h"

namespace adder {
namespace {

// Rows of logits that are held at once: 64 rows of a vocabulary of 100,000 are 26 MB.
constexpr size_t kChunk = 64;

}  // namespace

double NegativeLogLikelihood(std::span<const float> logits, int32_t target) {
  const double largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (float logit : logits) sum += std::exp(logit - largest);
  return largest + std::log(sum) - logits[static_cast<size_t>(target)];
}

PerplexityResult MeasurePerplexity(Executor& executor, std::span<const int32_t> tokens,
                                   const PerplexityOptions& options) {
  if (options.window < 1) {
    Fail("The perplexity window is ", options.window, " tokens; it must be at least 1.");
  }
  if (tokens.empty()) Fail("The text has no tokens, so there is nothing to score.");
  if (options.begin_id < 0 && (options.window < 2 || tokens.size() < 2)) {
    Fail(
        "The model has no token that begins a text, so the first token of a window is not scored; ",
        "a window of at least 2 tokens is needed.");
  }
  PerplexityResult result;
  const SequenceId sequence = executor.CreateSequence();
  const auto window = static_cast<size_t>(options.window);
  for (size_t begin = 0; begin < tokens.size(); begin += window) {
    const auto text = tokens.subspan(begin, std::min(window, tokens.size() - begin));
    // inputs[i] predicts targets[i].
    std::vector<int32_t> inputs;
    if (options.begin_id >= 0) inputs.push_back(options.begin_id);
    inputs.insert(inputs.end(), text.begin(), text.end() - 1);
    const auto targets = options.begin_id >= 0 ? text : text.subspan(1);
    executor.ResetSequence(sequence);
    for (size_t done = 0; done < targets.size(); done += kChunk) {
      const size_t count = std::min(kChunk, targets.size() - done);
      executor.Forward({{sequence, std::span(inputs).subspan(done, count), LogitsRows::kAll}});
      for (size_t i = 0; i < count; ++i) {
        const auto logits = executor.Logits(static_cast<int64_t>(i));
        result.nats += NegativeLogLikelihood(logits, targets[done + i]);
      }
      if (options.progress) {
        options.progress(static_cast<double>(begin + done + count) /
                         static_cast<double>(tokens.size()));
      }
    }
    result.scored_tokens += static_cast<int64_t>(targets.size());
    ++result.windows;
  }
  executor.FreeSequence(sequence);
  if (!std::isfinite(result.nats)) {
    Fail("The likelihood of the text is not a finite number; the model's logits are damaged.");
  }
  return result;
}

}  // namespace adder
