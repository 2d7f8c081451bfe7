#include "text/word_level.h"

#include "core/error.h"
#include "text/byte_level.h"

namespace adder::text {
namespace {

Vocabulary ParseVocabulary(const JsonObject& model) {
  const Json* vocab = model.Find({"vocab"});
  if (vocab == nullptr) Fail(model.where(), " lacks the field vocab.");
  return Vocabulary::Parse(*vocab, model.where() + ".vocab");
}

}  // namespace

WordLevelModel::WordLevelModel(const JsonObject& model)
    : TokenModel(ParseVocabulary(model)),
      where_(model.where()),
      unknown_id_(vocabulary_.Find(model.String({"unk_token"}, ""))) {}

void WordLevelModel::Tokenize(std::string_view piece, bool raw_bytes,
                              std::vector<int32_t>& ids) const {
  std::string characters;
  if (raw_bytes) {
    AppendByteCharacters(piece, characters);
    piece = characters;
  }
  int32_t id = vocabulary_.Find(piece);
  if (id < 0) id = unknown_id_;
  if (id < 0) Fail(where_, ": no token for a piece of the text, and unk_token is not in vocab.");
  ids.push_back(id);
}

}  // namespace adder::text
