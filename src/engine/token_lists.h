// Token ids from outside: the value of --tokens, and prompt files.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace adder {

// "1, 2,3": ids separated by commas or white space; brackets around the list are allowed. Throws
// Error quoting what is not an id in [0, 2^31), and for an empty list. `what` names the list in
// errors ("--tokens").
std::vector<int32_t> ParseTokenList(std::string_view text, std::string_view what);

// The JSON text of a prompts file, {"prompts": [[ids...], ...]}, where every id is in [0, vocab).
// Throws Error naming `source` and the place for anything else: another key, no prompts, an empty
// prompt, an id that is not a whole number or outside the vocabulary.
std::vector<std::vector<int32_t>> ParsePrompts(std::string_view json, std::string_view source,
                                               int64_t vocab);

}  // namespace adder
