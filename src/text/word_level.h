// WordLevel: each piece is one token.
#pragma once

#include "text/token_model.h"

namespace adder::text {

class WordLevelModel : public TokenModel {
 public:
  explicit WordLevelModel(const JsonObject& model);

  void Tokenize(std::string_view piece, bool raw_bytes, std::vector<int32_t>& ids) const override;

 private:
  std::string where_;
  int32_t unknown_id_;  // -1: none
};

}  // namespace adder::text
