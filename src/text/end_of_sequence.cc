#include "text/end_of_sequence.h"

#include <limits>
#include <optional>
#include <set>
#include <string>

#include "core/error.h"
#include "core/json.h"

namespace adder::text {
namespace {

std::optional<Json> ReadIfPresent(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return std::nullopt;
  return ReadJsonFile(path.string());
}

void AddIds(const JsonObject& object, std::set<int32_t>& ids) {
  const Json* field = object.Find({"eos_token_id"});
  if (field == nullptr) return;
  const auto add = [&](const Json& id) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      Fail(object.where(),
           ": the field eos_token_id should be a token id or a list of them, it is ", field->dump(),
           ".");
    }
    ids.insert(id.get<int32_t>());
  };
  if (!field->is_array()) return add(*field);
  for (const Json& id : *field) add(id);
}

void AddTokenizerEos(const JsonObject& config, const Tokenizer& tokenizer, std::set<int32_t>& ids) {
  const Json* field = config.Find({"eos_token"});
  if (field == nullptr) return;
  // Either the token itself or an object that describes it.
  const std::string token = field->is_object() ? config.Object({"eos_token"})->String({"content"})
                                               : config.String({"eos_token"});
  const int32_t id = tokenizer.TokenToId(token);
  if (id < 0) {
    Fail(config.where(), ": eos_token is \"", token, "\", which the tokenizer does not have.");
  }
  ids.insert(id);
}

}  // namespace

std::vector<int32_t> EndOfSequenceIds(const std::filesystem::path& dir,
                                      const Tokenizer* tokenizer) {
  std::set<int32_t> ids;
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path path = dir / name;
    const std::optional<Json> file = ReadIfPresent(path);
    if (!file) continue;
    const JsonObject config(*file, path.string());
    AddIds(config, ids);
    if (const auto nested = config.Object({"text_config"})) AddIds(*nested, ids);
  }
  const std::filesystem::path path = dir / "tokenizer_config.json";
  if (tokenizer != nullptr) {
    if (const std::optional<Json> file = ReadIfPresent(path)) {
      AddTokenizerEos(JsonObject(*file, path.string()), *tokenizer, ids);
    }
  }
  return {ids.begin(), ids.end()};
}

}  // namespace adder::text
