#include "engine/token_lists.h"

#include <charconv>
#include <limits>

#include "core/error.h"
#include "core/json.h"

namespace adder {
namespace {

constexpr std::string_view kSeparators = ", \t\r\n";
constexpr size_t kQuotedBytes = 40;

// A value for an error message, cut to a readable length.
std::string Quote(std::string_view value) {
  const bool whole = value.size() <= kQuotedBytes;
  return Concat('"', value.substr(0, kQuotedBytes), whole ? "\"" : "...\"");
}

std::string_view Trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace

std::vector<int32_t> ParseTokenList(std::string_view text, std::string_view what) {
  std::string_view rest = Trim(text);
  if (rest.size() >= 2 && rest.front() == '[' && rest.back() == ']') {
    rest = rest.substr(1, rest.size() - 2);
  }
  std::vector<int32_t> ids;
  for (;;) {
    const size_t begin = rest.find_first_not_of(kSeparators);
    if (begin == std::string_view::npos) break;
    rest.remove_prefix(begin);
    const std::string_view word = rest.substr(0, rest.find_first_of(kSeparators));
    rest.remove_prefix(word.size());
    int32_t id = -1;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (error != std::errc() || end != word.data() + word.size() || id < 0) {
      Fail(what, " holds ", Quote(word),
           ", which is not a token id; give whole numbers from 0 on, ",
           "separated by commas, such as 1,2,3.");
    }
    ids.push_back(id);
  }
  if (ids.empty()) {
    Fail(what, " holds no token ids; give whole numbers separated by commas, such as 1,2,3.");
  }
  return ids;
}

std::vector<std::vector<int32_t>> ParsePrompts(std::string_view json, std::string_view source,
                                               int64_t vocab) {
  constexpr char kForm[] = "A prompts file is {\"prompts\": [[1, 2, 3], ...]}.";
  const Json file = ParseJson(json, source, /*max_depth=*/8);
  if (!file.is_object()) Fail(source, " is not a JSON object. ", kForm);
  for (const auto& [key, value] : file.items()) {
    if (key != "prompts") Fail(source, " has the unknown field ", Quote(key), ". ", kForm);
  }
  const auto found = file.find("prompts");
  if (found == file.end() || !found->is_array()) {
    Fail(source, " lacks the list \"prompts\". ", kForm);
  }
  if (found->empty()) Fail(source, ": prompts is an empty list. ", kForm);

  std::vector<std::vector<int32_t>> prompts;
  for (const Json& list : *found) {
    const std::string where = Concat(source, ": prompts[", prompts.size(), "]");
    if (!list.is_array()) Fail(where, " is not a list of token ids. ", kForm);
    if (list.empty()) Fail(where, " is empty; a prompt has at least one token.");
    std::vector<int32_t> ids;
    ids.reserve(list.size());
    for (const Json& id : list) {
      if (!id.is_number_integer()) {
        Fail(where, "[", ids.size(), "] is ", Quote(id.dump(-1, ' ', true)),
             ", not a whole number.");
      }
      // Unsigned values beyond int64 would turn negative in a plain conversion.
      const bool huge = id.is_number_unsigned() && id.get<uint64_t>() > uint64_t{INT32_MAX};
      if (huge || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab) {
        Fail(where, "[", ids.size(), "] is ", id.dump(), ", but the model's token ids are 0 to ",
             vocab - 1, ".");
      }
      ids.push_back(id.get<int32_t>());
    }
    prompts.push_back(std::move(ids));
  }
  return prompts;
}

}  // namespace adder
