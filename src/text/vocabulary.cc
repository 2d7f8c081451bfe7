#include "text/vocabulary.h"

#include "core/error.h"

namespace adder::text {

Vocabulary Vocabulary::Parse(const Json& value, const std::string& where) {
  if (!value.is_object()) Fail(where, " should be an object of tokens and their ids.");
  Vocabulary vocabulary;
  vocabulary.ids_.reserve(value.size());
  for (const auto& [token, id] : value.items()) {
    if (!id.is_number_integer() || id < 0 || id >= kMaxIds) {
      Fail(where, ": the id of \"", token, "\" should be an integer from 0 to ", kMaxIds - 1,
           ", it is ", id.dump(), ".");
    }
    if (vocabulary.Has(id.get<int32_t>())) {
      Fail(where, ": the id ", id.dump(), " belongs to two tokens.");
    }
    vocabulary.Add(token, id.get<int32_t>());
  }
  return vocabulary;
}

void Vocabulary::Add(std::string_view token, int32_t id) {
  const auto index = static_cast<size_t>(id);
  if (index >= tokens_.size()) {
    tokens_.resize(index + 1);
    present_.resize(index + 1);
  }
  const std::string& stored = strings_.emplace_back(token);
  tokens_[index] = stored;
  present_[index] = true;
  ids_[stored] = id;
}

}  // namespace adder::text
