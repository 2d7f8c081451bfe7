#include "text/tokenizer_config.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>

#include "core/error.h"

namespace adder::text {
namespace {

// An empty object where there is no such file.
Json ReadIfPresent(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return Json::object();
  return ReadJsonFile(path.string());
}

int32_t ParseId(const std::string& text, const std::string& where) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0 ||
      id >= Vocabulary::kMaxIds) {
    Fail(where, ": \"", text, "\" should be a token id below ", Vocabulary::kMaxIds, ".");
  }
  return id;
}

// A token is written as its text or as an object that describes it.
std::string TokenText(const Json& value, const std::string& where) {
  if (value.is_string()) return value.get<std::string>();
  return JsonObject(value, where).String({"content"});
}

}  // namespace

TokenizerConfig::TokenizerConfig(const std::filesystem::path& dir,
                                 const SpecialTokenDefaults& defaults)
    : where_((dir / "tokenizer_config.json").string()),
      file_(ReadIfPresent(where_)),
      added_where_((dir / "added_tokens.json").string()),
      added_file_(ReadIfPresent(added_where_)),
      begin_(SpecialToken("bos_token", defaults.begin)),
      end_(SpecialToken("eos_token", defaults.end)),
      unknown_(SpecialToken("unk_token", defaults.unknown)),
      pad_(SpecialToken("pad_token", defaults.pad)),
      add_begin_(defaults.add_begin) {}

bool TokenizerConfig::Bool(std::string_view field, bool default_value) const {
  return object().Bool({field}, default_value);
}

std::string TokenizerConfig::String(std::string_view field,
                                    const std::string& default_value) const {
  return object().String({field}, default_value);
}

std::string TokenizerConfig::SpecialToken(std::string_view field,
                                          const std::string& default_value) const {
  JsonObject(file_, where_);  // throws for anything but an object
  const auto found = file_.find(field);
  if (found == file_.end()) return default_value;
  if (found->is_null()) return "";
  return TokenText(*found, Concat(where_, ": ", field));
}

AddedTokens TokenizerConfig::ReadAddedTokens(const Vocabulary& vocabulary) const {
  std::map<int32_t, AddedToken> tokens;  // by id
  std::unordered_map<std::string, int32_t> ids;
  if (const auto listed = object().Object({"added_tokens_decoder"})) {
    for (const auto& [key, value] : listed->value().items()) {
      const int32_t id = ParseId(key, listed->where());
      AddedToken token = ReadAddedToken(JsonObject(value, listed->where() + "." + key), id);
      ids[token.content] = id;
      tokens[id] = std::move(token);
    }
  }
  const JsonObject added(added_file_, added_where_);
  for (const auto& [content, value] : added.value().items()) {
    const auto id = static_cast<int32_t>(added.Int({content}, 0, Vocabulary::kMaxIds - 1));
    if (!ids.emplace(content, id).second) continue;
    AddedToken token;
    token.content = content;
    token.id = id;
    tokens[id] = std::move(token);
  }

  std::vector<std::string> special = {begin_, end_, unknown_, pad_};
  for (std::string_view field : {"sep_token", "cls_token", "mask_token"}) {
    special.push_back(SpecialToken(field, ""));
  }
  if (const Json* more = object().Find({"additional_special_tokens"})) {
    const std::string where = where_ + ": additional_special_tokens";
    if (!more->is_array()) Fail(where, " should be an array.");
    for (const Json& token : *more) special.push_back(TokenText(token, where));
  }
  int32_t next_id = vocabulary.size();
  if (!tokens.empty()) next_id = std::max(next_id, tokens.rbegin()->first + 1);
  for (const std::string& content : special) {
    if (content.empty()) continue;
    const auto known = ids.find(content);
    if (known != ids.end()) {
      tokens[known->second].special = true;
      continue;
    }
    AddedToken token;
    token.content = content;
    token.id = vocabulary.Find(content);
    if (token.id < 0) token.id = next_id++;
    if (token.id >= Vocabulary::kMaxIds) Fail(where_, ": there are too many tokens.");
    token.special = true;
    ids[content] = token.id;
    tokens[token.id] = std::move(token);
  }

  std::vector<AddedToken> list;
  for (auto& [id, token] : tokens) list.push_back(std::move(token));
  return AddedTokens(std::move(list));
}

PostProcessor TokenizerConfig::ReadPostProcessor(const AddedTokens& added) const {
  const auto ids_of = [&](std::string_view flag, const std::string& content, bool default_value) {
    std::vector<int32_t> ids;
    if (!Bool(flag, default_value)) return ids;
    for (const AddedToken& token : added.tokens()) {
      if (token.content == content) ids.push_back(token.id);
    }
    if (ids.empty()) Fail(where_, ": ", flag, " is set, but there is no such token.");
    return ids;
  };
  return PostProcessor(ids_of("add_bos_token", begin_, add_begin_),
                       ids_of("add_eos_token", end_, false));
}

}  // namespace adder::text
