// PLaMo-2's tokenizer: tokenizer.jsonl, one line ["token", score, "TYPE"] for each id.
//
// A text is split so that the scores of its tokens add up highest; of equals, each place from the
// left takes the longest token. Scores count in ten-thousandths. A character without a token costs
// 1000 and becomes the tokens of its UTF-8 bytes (type BYTE), which match nothing else. The
// definition is the remote code of the checkpoints, tokenization_plamo.py.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_trie.h"
#include "text/tokenizer_parts.h"

namespace adder::text {

class PlamoModel : public TokenModel {
 public:
  // The contents of a tokenizer.jsonl. Throws Error, beginning with `where` and the line.
  PlamoModel(std::string_view lines, const std::string& where);

  void Tokenize(std::string_view piece, bool raw_bytes, std::vector<int32_t>& ids) const override;

 private:
  void AddLine(std::string_view line, const std::string& where);

  ByteTrie trie_;
  std::vector<int64_t> costs_;  // by id, in ten-thousandths
  std::array<int32_t, 256> byte_token_;
};

// Throws Error, naming file and line or field.
TokenizerParts ReadPlamoTokenizer(const std::filesystem::path& dir);

}  // namespace adder::text
