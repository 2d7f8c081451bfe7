// What a tokenizer is made of. Each file format has a reader that fills the parts.
#pragma once

#include <filesystem>
#include <memory>

#include "core/json.h"
#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/post_processor.h"
#include "text/pre_tokenizer.h"
#include "text/token_model.h"

namespace adder::text {

struct TokenizerParts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  PostProcessor post_processor;
  Decoder decoder;
  AddedTokens added;
};

}  // namespace adder::text
