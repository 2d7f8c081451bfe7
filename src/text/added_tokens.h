// Added tokens: strings that are found in the text before anything else looks at it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/byte_trie.h"
#include "text/vocabulary.h"

namespace adder::text {

struct AddedToken {
  std::string content;
  std::string decoded;  // what it decodes to: the content, normalised if it is looked for so
  int32_t id = 0;
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the whitespace before it along
  bool rstrip = false;       // takes the whitespace behind it along
  bool normalized = true;    // looked for in the normalised text, in its own normalised form
  bool special = false;      // may be left out when decoding
};

// Reads an added token but for its id. Throws Error, naming the field, for malformed ones.
AddedToken ReadAddedToken(const JsonObject& object, int32_t id);

// A stretch of text: an added token, or text between them.
struct Segment {
  size_t begin;
  size_t end;
  int32_t id;  // -1: text
};

// Finds a set of added tokens: at each place the longest, from left to right.
class AddedTokenFinder {
 public:
  // Looks for `text`; an empty text is never found.
  void Add(const AddedToken& token, std::string_view text);
  bool empty() const { return tokens_.empty(); }
  // Replaces `segments` by a split of `text`; segments are never empty.
  void Split(std::string_view text, std::vector<Segment>& segments) const;

 private:
  // The longest token at `position`: its index and length, or -1.
  int32_t LongestAt(std::string_view text, size_t position, size_t& length) const;

  std::vector<AddedToken> tokens_;
  ByteTrie trie_;                                             // index into tokens_
  std::array<bool, 256> first_ = {};                          // bytes that begin a token
  std::vector<bool> first_two_ = std::vector<bool>(1 << 16);  // byte pairs that begin a token
  bool has_single_byte_ = false;
};

class AddedTokens {
 public:
  // Reads the "added_tokens" array; null gives none. Tokens that are in `vocabulary` keep its id.
  // `normalize` is the tokenizer's normalizer.
  AddedTokens(const Json& value, const std::string& where, const Vocabulary& vocabulary,
              const std::function<std::string(std::string_view)>& normalize);
  // Tokens with ids of their own, all looked for in the text as it came.
  explicit AddedTokens(std::vector<AddedToken> tokens);

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  // For the text as it came, and for its normalised form.
  const AddedTokenFinder& raw() const { return raw_; }
  const AddedTokenFinder& normalized() const { return normalized_; }

 private:
  std::vector<AddedToken> tokens_;
  AddedTokenFinder raw_;
  AddedTokenFinder normalized_;
};

}  // namespace adder::text
