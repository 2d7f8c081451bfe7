#include "text/post_processor.h"

#include <limits>

#include "core/error.h"
#include "text/sequence_parts.h"

namespace adder::text {
namespace {

// The ids of one special token of a template.
std::vector<int32_t> SpecialTokenIds(const JsonObject& object, const std::string& name) {
  const std::optional<JsonObject> tokens = object.Object({"special_tokens"});
  if (!tokens || !tokens->Has(name)) {
    Fail(object.where(), ": special_tokens lacks \"", name, "\".");
  }
  const JsonObject token = *tokens->Object({name});
  const Json* list = token.Find({"ids"});
  if (list == nullptr || !list->is_array()) {
    Fail(token.where(), ": the field ids should be an array.");
  }
  std::vector<int32_t> ids;
  for (const Json& id : *list) {
    if (!id.is_number_integer() || id < 0 || id > std::numeric_limits<int32_t>::max()) {
      Fail(token.where(), ": the field ids should hold token ids, it has ", id.dump(), ".");
    }
    ids.push_back(id.get<int32_t>());
  }
  return ids;
}

}  // namespace

PostProcessor::PostProcessor(const Json& value, const std::string& where) {
  if (!value.is_null()) Add(value, where);
}

void PostProcessor::Add(const Json& value, const std::string& where) {
  const JsonObject object(value, where);
  const std::string type = object.String({"type"});
  if (type == "Sequence") {
    ForEachOfSequence(object, "processors",
                      [this](const Json& step, const std::string& place) { Add(step, place); });
  } else if (type == "TemplateProcessing") {
    AddTemplate(object);
  } else if (type != "ByteLevel") {
    Fail(where, ": the post-processor type ", type, " is not supported.");
  }
}

void PostProcessor::AddTemplate(const JsonObject& object) {
  const Json* pieces = object.Find({"single"});
  if (pieces == nullptr || !pieces->is_array()) {
    Fail(object.where(), ": the field single should be an array.");
  }
  std::vector<int32_t> before;
  std::vector<int32_t> behind;
  int sequences = 0;
  for (const Json& piece : *pieces) {
    const JsonObject item(piece, object.where() + ": single");
    if (item.Has("Sequence")) {
      ++sequences;
      continue;
    }
    const std::optional<JsonObject> special = item.Object({"SpecialToken"});
    if (!special) {
      Fail(item.where(), ": an entry is neither a Sequence nor a SpecialToken: ", piece.dump());
    }
    std::vector<int32_t>& side = sequences > 0 ? behind : before;
    const std::vector<int32_t> ids = SpecialTokenIds(object, special->String({"id"}));
    side.insert(side.end(), ids.begin(), ids.end());
  }
  if (sequences != 1) {
    Fail(object.where(), ": the field single should hold the text once, it does ", sequences,
         " times.");
  }
  // A later template wraps what the earlier ones made.
  prefix_.insert(prefix_.begin(), before.begin(), before.end());
  suffix_.insert(suffix_.end(), behind.begin(), behind.end());
}

}  // namespace adder::text
