// The character map of SentencePiece models: a double-array trie from byte strings to replacements.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace adder::text {

class PrecompiledMap {
 public:
  // `base64` holds the size of the trie in bytes (u32, little-endian), the trie (u32 units), and
  // the replacements, each ended by a zero byte. Throws Error, beginning with `where`.
  PrecompiledMap(std::string_view base64, const std::string& where);

  // Replaces grapheme clusters of up to 5 bytes as a whole, and what else the map has character by
  // character.
  std::string Apply(std::string_view text) const;

  // In bytes, at least 1.
  size_t longest_replacement() const { return longest_replacement_; }

 private:
  // The replacement of the shortest prefix of `text` that the map has.
  std::optional<std::string_view> Find(std::string_view text) const;

  std::vector<uint32_t> trie_;
  std::string replacements_;
  size_t longest_replacement_ = 1;
};

// Throws Error, beginning with `where`, unless a search for any text in the map `bytes` (decoded
// from base64) stays inside it and ends at a replacement of UTF-8 within bounds. For a reader that
// does not check that itself.
void CheckCharsmap(std::string_view bytes, const std::string& where);

}  // namespace adder::text
