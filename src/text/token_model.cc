#include "text/token_model.h"

#include "core/error.h"
#include "text/bpe.h"
#include "text/unigram.h"
#include "text/word_level.h"

namespace adder::text {

std::unique_ptr<TokenModel> TokenModel::Parse(const JsonObject& model) {
  // Files of old versions lack the type.
  const std::string type = model.String({"type"}, model.Has("merges") ? "BPE" : "");
  if (type == "BPE") return std::make_unique<BpeModel>(model);
  if (type == "Unigram") return std::make_unique<UnigramModel>(model);
  if (type == "WordLevel") return std::make_unique<WordLevelModel>(model);
  if (type.empty()) Fail(model.where(), " lacks the field type.");
  Fail(model.where(), ": the model type ", type, " is not supported.");
}

std::string ByteTokenName(uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

}  // namespace adder::text
