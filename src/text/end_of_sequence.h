// Which tokens end a sequence.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "text/tokenizer.h"

namespace adder::text {

// The union, ascending, of eos_token_id (a number or a list) in generation_config.json and
// config.json (there also under text_config) and the id of eos_token in tokenizer_config.json. The
// files are looked for in the model directory `dir`; missing ones, and missing or null fields, say
// nothing. `tokenizer` may be null: then eos_token is not looked up. Throws Error, naming file and
// field, for malformed ones, and for an eos_token that the tokenizer lacks.
std::vector<int32_t> EndOfSequenceIds(const std::filesystem::path& dir, const Tokenizer* tokenizer);

}  // namespace adder::text
