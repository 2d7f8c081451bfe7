#include "text/output_parser/json_value.h"

#include "core/error.h"
#include "core/json.h"

namespace adder::text {
namespace {

constexpr std::string_view kSpace = " \t\n\r";

// The length of the value at the front of valid JSON, up to a separator or a closing bracket.
size_t ValueLength(std::string_view text) {
  if (text[0] == '{' || text[0] == '[') {
    JsonBoundary boundary;
    size_t length = 0;
    while (!boundary.Push(text[length++])) {
    }
    return length;
  }
  if (text[0] != '"') return text.find_first_of(",]} \t\n\r");
  size_t length = 1;
  while (text[length] != '"') length += text[length] == '\\' ? 2 : 1;
  return length + 1;
}

// Walks the parts of an object or array: `text` without its opening bracket.
class Parts {
 public:
  explicit Parts(std::string_view text) : rest_(text.substr(1)) {}

  // Skips separators; false at the closing bracket.
  bool More() {
    rest_.remove_prefix(rest_.find_first_not_of(",: \t\n\r"));
    return rest_[0] != ']' && rest_[0] != '}';
  }
  std::string_view Take() {
    const std::string_view value = rest_.substr(0, ValueLength(rest_));
    rest_.remove_prefix(value.size());
    return value;
  }

 private:
  std::string_view rest_;
};

}  // namespace

bool JsonBoundary::Push(char c) {
  if (escaped_) {
    escaped_ = false;
  } else if (in_string_) {
    escaped_ = c == '\\';
    in_string_ = c != '"';
  } else if (c == '"') {
    in_string_ = true;
  } else if (c == '{' || c == '[') {
    ++depth_;
  } else if ((c == '}' || c == ']') && depth_ > 0) {
    complete_ = --depth_ == 0;
  }
  return complete_;
}

std::string_view TrimSpace(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

bool IsJson(std::string_view text) {
  // accept() knows no Infinity and NaN, ParseJson no double keys and no endless nesting.
  if (!Json::accept(text)) return false;
  try {
    ParseJson(text, "a tool call");
  } catch (const Error&) {
    return false;
  }
  return true;
}

std::vector<std::pair<std::string_view, std::string_view>> JsonMembers(std::string_view text) {
  std::vector<std::pair<std::string_view, std::string_view>> members;
  for (Parts parts(TrimSpace(text)); parts.More();) {
    std::string_view name = parts.Take();
    name = name.substr(1, name.size() - 2);
    parts.More();  // the colon
    members.emplace_back(name, parts.Take());
  }
  return members;
}

std::vector<std::string_view> JsonElements(std::string_view text) {
  std::vector<std::string_view> elements;
  for (Parts parts(TrimSpace(text)); parts.More();) elements.push_back(parts.Take());
  return elements;
}

std::string JsonString(std::string_view text) {
  return Json(std::string(text)).dump(-1, ' ', false, Json::error_handler_t::replace);
}

bool JsonObjectBuilder::Add(std::string_view name, std::string_view value) {
  if (name.empty() || !names_.emplace(name).second) return false;
  if (names_.size() > 1) json_ += ", ";
  json_ += JsonString(name);
  json_ += ": ";
  json_ += value;
  return true;
}

std::string JsonObjectBuilder::Take() {
  json_.push_back('}');
  return std::move(json_);
}

}  // namespace adder::text
