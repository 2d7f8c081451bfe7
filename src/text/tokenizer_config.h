// tokenizer_config.json, as it matters to tokenizers that have no tokenizer.json: which tokens are
// added or special, and which of them go around a text. (With a tokenizer.json all this is in
// there.)
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/added_tokens.h"
#include "text/post_processor.h"

namespace adder::text {

// The special tokens of a kind of tokenizer where the file does not name them; empty: none.
struct SpecialTokenDefaults {
  std::string begin;
  std::string end;
  std::string unknown;
  std::string pad;
  bool add_begin = false;
};

class TokenizerConfig {
 public:
  // Reads tokenizer_config.json and added_tokens.json in `dir`; either may be missing. Throws
  // Error, naming file and field, for malformed ones.
  TokenizerConfig(const std::filesystem::path& dir, const SpecialTokenDefaults& defaults);

  // The tokens to look for in a text: those listed, and the special ones. A special token without
  // an id in `vocabulary` or in the files gets the next free one.
  AddedTokens ReadAddedTokens(const Vocabulary& vocabulary) const;

  // Puts the beginning and end tokens around a text as add_bos_token and add_eos_token say.
  PostProcessor ReadPostProcessor(const AddedTokens& added) const;

  // Fields of tokenizer_config.json; the default where the file or the field is missing.
  bool Bool(std::string_view field, bool default_value) const;
  std::string String(std::string_view field, const std::string& default_value) const;
  const std::string& where() const { return where_; }
  const std::string& unknown() const { return unknown_; }

 private:
  JsonObject object() const { return JsonObject(file_, where_); }
  std::string SpecialToken(std::string_view field, const std::string& default_value) const;

  std::string where_;
  Json file_ = Json::object();
  std::string added_where_;
  Json added_file_ = Json::object();
  std::string begin_;
  std::string end_;
  std::string unknown_;
  std::string pad_;
  bool add_begin_;
};

}  // namespace adder::text
