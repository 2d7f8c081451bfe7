#include "text/jinja/attribute_path.h"

#include <algorithm>

#include "text/jinja/operators.h"

namespace adder::text::jinja {
namespace {

std::vector<std::string> SplitAt(const std::string& text, char separator) {
  std::vector<std::string> parts(1);
  for (char c : text) {
    if (c == separator) {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

bool IsIndex(const std::string& part) {
  return !part.empty() && part.size() < 18 &&
         std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

AttributePath::AttributePath(Runtime& runtime, const Value& path) {
  if (path.Is(Kind::kNone)) return;
  if (!path.Is(Kind::kString)) {
    keys_.push_back(path);
    return;
  }
  for (std::string& part : SplitAt(path.text(), '.')) {
    keys_.push_back(IsIndex(part) ? Value::Int(std::stoll(part)) : runtime.String(std::move(part)));
  }
}

Value AttributePath::Follow(Runtime& runtime, const Value& value, const Value* absent) const {
  Value found = value;
  for (const Value& key : keys_) {
    found = GetElement(runtime, found, key);
    if (found.IsUndefined() && absent != nullptr && !absent->Is(Kind::kNone)) found = *absent;
  }
  return found;
}

std::vector<AttributePath> ParseAttributePaths(Runtime& runtime, const Value& paths) {
  std::vector<AttributePath> parsed;
  if (!paths.Is(Kind::kString)) {
    parsed.emplace_back(runtime, paths);
    return parsed;
  }
  for (std::string& path : SplitAt(paths.text(), ',')) {
    parsed.emplace_back(runtime, runtime.String(std::move(path)));
  }
  return parsed;
}

}  // namespace adder::text::jinja
