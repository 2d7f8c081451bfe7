// Python literals as JSON. Some models write the arguments of tool calls as Python would.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace adder::text {

// Where a quote inside a string was not escaped, as templates that only put quotes around a value
// write it: kLenient ends a string at a quote only where a comma, a colon, a closing bracket or the
// end of the text follows.
enum class PythonQuotes { kStrict, kLenient };

// Reads from the front of a text.
class PythonReader {
 public:
  PythonReader(std::string_view text, PythonQuotes quotes) : text_(text), quotes_(quotes) {}

  // Reads one literal and appends it to `json`: strings, numbers, True, False, None (and JSON's
  // words for them), lists, tuples and dicts with string keys. False when there is none; `json` is
  // then unspecified. Nesting is bounded.
  bool Literal(std::string& json) { return Literal(json, 0); }
  // A function's or an argument's name: letters, digits, '_', '.' and '-'. Empty when there is
  // none.
  std::string_view Name();
  // Skips white space, and then `token` when it comes next.
  bool Take(char token);
  // Whether only white space is left.
  bool AtEnd();

 private:
  bool Literal(std::string& json, int depth);
  bool Word(std::string& json);
  bool Number(std::string& json);
  bool String(std::string& value);
  bool Escape(std::string& value);
  bool List(char close, std::string& json, int depth);
  bool Dict(std::string& json, int depth);
  bool EndsString(size_t after) const;
  void SkipSpace();
  bool Has(char c) const { return position_ < text_.size() && text_[position_] == c; }

  std::string_view text_;
  size_t position_ = 0;
  PythonQuotes quotes_;
};

}  // namespace adder::text
