// Unigram: the split of a piece into tokens whose scores (log probabilities) add up highest.
#pragma once

#include "text/byte_trie.h"
#include "text/token_model.h"

namespace adder::text {

class UnigramModel : public TokenModel {
 public:
  explicit UnigramModel(const JsonObject& model);

  void Tokenize(std::string_view piece, bool raw_bytes, std::vector<int32_t>& ids) const override;

 private:
  void AppendToken(std::string_view text, std::vector<int32_t>& ids) const;
  int32_t UnknownId() const;

  std::string where_;
  ByteTrie trie_;
  std::vector<double> scores_;  // by id
  double unknown_score_;
  int32_t unknown_id_;  // -1: none
  bool byte_fallback_;
};

}  // namespace adder::text
