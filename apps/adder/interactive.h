// What the commands share that talk with a person line by line: run and chat.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "engine/generation.h"
#include "line_reader.h"
#include "loader/loader.h"

namespace adder::cli {

// Gives every line to `handle` until it returns false or the input ends. At a terminal an Error is
// printed and the next line may do better; a pipe should not go on unnoticed. An InterruptFlag must
// live.
void Converse(LineReader& reader, const std::function<bool(const std::string& line)>& handle);

// How to generate the reply number `reply` (0, 1, ...) behind `tokens` tokens: up to `max_tokens`
// while the model has positions, stopped by Ctrl-C. Replies of one run differ, and the run as a
// whole follows from its seed. Throws Error when no position is left; `advice` ends the message.
GenerationOptions ReplyOptions(const LoadedModel& model, const SamplingParameters& sampling,
                               uint64_t reply, int64_t max_tokens, int64_t tokens,
                               std::string_view advice);

// Lines for /stats: device, tokens so far, the last reply's speed, memory, sampling.
std::string StatsText(const LoadedModel& model, size_t tokens, const GenerationTimings& last,
                      const SamplingParameters& sampling);

// Throws Error unless --max-tokens is positive.
void CheckMaxTokens(int64_t max_tokens);

}  // namespace adder::cli
