#include "interactive.h"

#include <algorithm>
#include <iostream>

#include "command.h"
#include "core/error.h"
#include "measure/bandwidth_probe.h"

namespace adder::cli {

void Converse(LineReader& reader, const std::function<bool(const std::string& line)>& handle) {
  std::string line;
  for (;;) {
    const LineReader::Outcome outcome = reader.Read(line);
    if (outcome == LineReader::Outcome::kInterrupted) continue;
    if (outcome == LineReader::Outcome::kEnd) break;
    try {
      if (!handle(line)) return;
    } catch (const Error& error) {
      if (!reader.interactive()) throw;
      std::cerr << "adder: " << error.what() << "\n";
    }
  }
  if (reader.interactive()) Print("\n");
}

GenerationOptions ReplyOptions(const LoadedModel& model, const SamplingParameters& sampling,
                               uint64_t reply, int64_t max_tokens, int64_t tokens,
                               std::string_view advice) {
  CheckPositions(*model.plan, tokens, 0, advice);
  GenerationOptions options;
  options.max_tokens = max_tokens;
  // The last token is written, not read, so it takes no position.
  if (const int64_t positions = model.plan->max_positions; positions > 0) {
    options.max_tokens = std::min(max_tokens, positions - tokens + 1);
  }
  options.sampling = sampling;
  options.sampling.seed += reply;
  options.end_ids = model.end_ids;
  options.cancel = &InterruptFlag::raised();
  return options;
}

std::string StatsText(const LoadedModel& model, size_t tokens, const GenerationTimings& last,
                      const SamplingParameters& sampling) {
  return Concat("device   ", model.executor->Description(), "\ntokens   ", tokens,
                " in this text\nprompt   ", Fixed(last.PromptRate(), 1), " tok/s (last reply, ",
                last.prompt_tokens, " tokens)\ndecode   ", Fixed(last.DecodeRate(), 1),
                " tok/s (last reply, ", last.decode_steps, " tokens)\nmemory   weights ",
                Megabytes(model.executor->WeightBytes()), ", state ",
                Megabytes(model.executor->StateBytes()), ", peak ", Megabytes(PeakResidentBytes()),
                "\nsampling temperature ", sampling.temperature, ", top-k ", sampling.top_k,
                ", top-p ", sampling.top_p, ", min-p ", sampling.min_p, ", repeat penalty ",
                sampling.repeat_penalty, ", seed ", sampling.seed, "\n");
}

void CheckMaxTokens(int64_t max_tokens) {
  if (max_tokens < 1) Fail("--max-tokens is ", max_tokens, "; it must be at least 1.");
}

}  // namespace adder::cli
