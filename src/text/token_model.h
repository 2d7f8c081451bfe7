// The model of a tokenizer: what turns one pre-tokenized piece of text into token ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/vocabulary.h"

namespace adder::text {

class TokenModel {
 public:
  virtual ~TokenModel() = default;

  // Reads the "model" object of a tokenizer.json: BPE, Unigram or WordLevel. Throws Error, naming
  // the field, for malformed or unsupported contents.
  static std::unique_ptr<TokenModel> Parse(const JsonObject& model);

  // Appends the ids of `piece`, which is not empty. It is valid UTF-8; with `raw_bytes` it stands
  // for the text of its byte-level characters instead (see byte_level.h). Safe to call from several
  // threads. Throws Error where the model has no token for a piece and no unknown token either.
  virtual void Tokenize(std::string_view piece, bool raw_bytes,
                        std::vector<int32_t>& ids) const = 0;

  // Length of a prefix of `piece` (not raw bytes, not empty) whose ids are the same whether it is
  // tokenized alone or with what follows. Short prefixes make long pieces fast.
  virtual size_t SafePrefix(std::string_view piece) const { return piece.size(); }

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  explicit TokenModel(Vocabulary vocabulary) : vocabulary_(std::move(vocabulary)) {}

  Vocabulary vocabulary_;
};

// "<0x0A>", the name of a byte's token.
std::string ByteTokenName(uint8_t byte);

}  // namespace adder::text
