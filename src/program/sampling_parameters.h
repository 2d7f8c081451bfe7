// How the next token is chosen; see engine/sampler.h.
#pragma once

#include <cstdint>

namespace adder {

struct SamplingParameters {
  float temperature = 0;       // 0: the most likely token, always
  int64_t top_k = 0;           // keep the k most likely tokens; 0: all
  float top_p = 1;             // keep the fewest most likely tokens with this much probability
  float min_p = 0;             // keep tokens at least this likely relative to the likeliest
  float repeat_penalty = 1;    // > 1 makes tokens of the recent window less likely
  int64_t repeat_window = 64;  // tokens, of prompt and output
  uint64_t seed = 0;
};

}  // namespace adder
