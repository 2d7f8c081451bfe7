// Values as text: Python's str() and repr(), and JSON as its json module writes it.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

// Python's repr of a float: the shortest digits that give the same number, "1e+16", "nan".
std::string FloatRepr(double number);

// Python's repr of a string: in single quotes unless it has some and no double ones.
std::string StringRepr(std::string_view text);

// What printing the value writes. Something undefined is empty.
void AppendString(Runtime& runtime, const Value& value, std::string& text);
std::string ToString(Runtime& runtime, const Value& value);

std::string Repr(Runtime& runtime, const Value& value);

struct JsonStyle {
  bool ensure_ascii = false;
  std::optional<std::string> indent;  // one level of indentation
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};
std::string ToJson(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace adder::text::jinja
