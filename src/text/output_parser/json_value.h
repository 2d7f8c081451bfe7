// JSON inside a model's output: its borders, its checks, and its parts as they were written.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace adder::text {

// Finds the end of one JSON object or array in text that arrives byte by byte. Only brackets and
// strings are looked at: whether it is JSON is for IsJson to say.
class JsonBoundary {
 public:
  // Takes one byte; true when it completes the value. The first byte must be a bracket.
  bool Push(char c);
  bool in_string() const { return in_string_; }
  bool complete() const { return complete_; }

 private:
  size_t depth_ = 0;
  bool in_string_ = false;
  bool escaped_ = false;
  bool complete_ = false;
};

std::string_view TrimSpace(std::string_view text);

// Strict JSON in valid UTF-8, not too deep, no key twice in one object.
bool IsJson(std::string_view text);

// Name and value of the members of an object, and the elements of an array, in order and as they
// are written, the names without their quotes but with escapes. `text` must be IsJson.
std::vector<std::pair<std::string_view, std::string_view>> JsonMembers(std::string_view text);
std::vector<std::string_view> JsonElements(std::string_view text);

// `text` as a JSON string; bytes that make no character become U+FFFD.
std::string JsonString(std::string_view text);

// Writes an object member by member.
class JsonObjectBuilder {
 public:
  // `value` is JSON. False when the name is empty or was there before.
  bool Add(std::string_view name, std::string_view value);
  std::string Take();

 private:
  std::set<std::string, std::less<>> names_;
  std::string json_ = "{";
};

}  // namespace adder::text
