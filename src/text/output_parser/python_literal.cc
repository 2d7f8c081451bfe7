#include "text/output_parser/python_literal.h"

#include <cctype>
#include <cstdint>
#include <optional>
#include <utility>

#include "text/output_parser/json_value.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

constexpr int kMaxDepth = 64;

constexpr std::pair<std::string_view, std::string_view> kWords[] = {
    {"True", "true"}, {"False", "false"}, {"None", "null"},
    {"true", "true"}, {"false", "false"}, {"null", "null"},
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '.' || c == '-';
}
bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// Takes digits at `position`, dropping the underscores that Python allows between them.
std::string TakeDigits(std::string_view text, size_t& position) {
  std::string digits;
  while (position < text.size()) {
    const bool grouped = text[position] == '_' && !digits.empty() && position + 1 < text.size() &&
                         IsDigit(text[position + 1]);
    if (grouped) ++position;
    if (!IsDigit(text[position])) break;
    digits.push_back(text[position++]);
  }
  return digits;
}

// The number that up to `count` digits of the base spell at `position`; moves behind them.
std::optional<uint32_t> TakeCodePoint(std::string_view text, size_t& position, int count, int base,
                                      bool exactly) {
  uint32_t value = 0;
  int taken = 0;
  for (; taken < count && position < text.size(); ++taken, ++position) {
    const char c = text[position];
    const int digit = IsDigit(c) ? c - '0'
                                 : (std::isxdigit(static_cast<unsigned char>(c)) != 0
                                        ? std::tolower(static_cast<unsigned char>(c)) - 'a' + 10
                                        : 99);
    if (digit >= base) break;
    value = value * static_cast<uint32_t>(base) + static_cast<uint32_t>(digit);
  }
  if (taken == 0 || (exactly && taken != count)) return std::nullopt;
  return value;
}

bool IsHighSurrogate(uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool IsLowSurrogate(uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

}  // namespace

void PythonReader::SkipSpace() {
  while (position_ < text_.size() && IsSpace(text_[position_])) ++position_;
}

bool PythonReader::Take(char token) {
  SkipSpace();
  if (!Has(token)) return false;
  ++position_;
  return true;
}

bool PythonReader::AtEnd() {
  SkipSpace();
  return position_ == text_.size();
}

std::string_view PythonReader::Name() {
  SkipSpace();
  const size_t begin = position_;
  while (position_ < text_.size() && IsNameCharacter(text_[position_])) ++position_;
  return text_.substr(begin, position_ - begin);
}

bool PythonReader::Literal(std::string& json, int depth) {
  SkipSpace();
  if (position_ == text_.size() || depth >= kMaxDepth) return false;
  switch (text_[position_]) {
    case '\'':
    case '"': {
      std::string value;
      if (!String(value)) return false;
      json += JsonString(value);
      return true;
    }
    case '[':
      return List(']', json, depth);
    case '(':
      return List(')', json, depth);
    case '{':
      return Dict(json, depth);
    default:
      return Word(json) || Number(json);
  }
}

bool PythonReader::Word(std::string& json) {
  for (const auto& [python, word] : kWords) {
    const size_t end = position_ + python.size();
    if (!text_.substr(position_).starts_with(python)) continue;
    if (end < text_.size() && IsNameCharacter(text_[end])) return false;
    json += word;
    position_ = end;
    return true;
  }
  return false;
}

// Writes the number so that JSON takes it: ".5" is 0.5, "1." is 1.0, "+1_000" is 1000.
bool PythonReader::Number(std::string& json) {
  std::string number;
  if (Has('-')) number = "-";
  if (Has('-') || Has('+')) ++position_;
  const std::string whole = TakeDigits(text_, position_);
  std::string fraction;
  const bool point = Has('.');
  if (point) {
    ++position_;
    fraction = TakeDigits(text_, position_);
  }
  if (whole.empty() && fraction.empty()) return false;
  if (whole.size() > 1 && whole[0] == '0' && !point) return false;
  // Floats may have leading zeros in Python, but not in JSON.
  const size_t significant = whole.find_first_not_of('0');
  number += significant == std::string::npos ? "0" : whole.substr(significant);
  if (point) {
    number.push_back('.');
    number += fraction.empty() ? "0" : fraction;
  }
  if (Has('e') || Has('E')) {
    ++position_;
    number.push_back('e');
    if (Has('+') || Has('-')) number.push_back(text_[position_++]);
    const std::string exponent = TakeDigits(text_, position_);
    if (exponent.empty()) return false;
    number += exponent;
  }
  if (position_ < text_.size() && IsNameCharacter(text_[position_])) return false;
  json += number;
  return true;
}

// Whether a quote before position `after` ends a string.
bool PythonReader::EndsString(size_t after) const {
  if (quotes_ == PythonQuotes::kStrict) return true;
  while (after < text_.size() && IsSpace(text_[after])) ++after;
  constexpr std::string_view kFollowers = ",:)]}";
  return after == text_.size() || kFollowers.find(text_[after]) != std::string_view::npos;
}

bool PythonReader::String(std::string& value) {
  const char quote = text_[position_];
  const std::string triple(3, quote);
  const bool long_string = text_.substr(position_).starts_with(triple);
  position_ += long_string ? 3 : 1;
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (long_string ? text_.substr(position_).starts_with(triple)
                    : c == quote && EndsString(position_ + 1)) {
      position_ += long_string ? 3 : 1;
      return true;
    }
    ++position_;
    if (c != '\\') {
      value.push_back(c);
    } else if (!Escape(value)) {
      return false;
    }
  }
  return false;
}

// What follows a backslash. Python keeps the backslash of an escape that it does not know.
bool PythonReader::Escape(std::string& value) {
  if (position_ == text_.size()) return false;
  const char c = text_[position_++];
  constexpr std::string_view kPlain = "\\'\"/";
  constexpr std::string_view kNames = "ntrabfv";
  constexpr std::string_view kValues = "\n\t\r\a\b\f\v";
  if (c == '\n') return true;  // a line that goes on
  if (kPlain.find(c) != std::string_view::npos) {
    value.push_back(c);
    return true;
  }
  if (const size_t at = kNames.find(c); at != std::string_view::npos) {
    value.push_back(kValues[at]);
    return true;
  }
  std::optional<uint32_t> code;
  if (c == 'x') {
    code = TakeCodePoint(text_, position_, 2, 16, true);
  } else if (c == 'u') {
    code = TakeCodePoint(text_, position_, 4, 16, true);
    // JSON writes characters beyond 16 bits as two escapes.
    if (code && IsHighSurrogate(*code) && text_.substr(position_).starts_with("\\u")) {
      size_t behind = position_ + 2;
      const auto low = TakeCodePoint(text_, behind, 4, 16, true);
      if (low && IsLowSurrogate(*low)) {
        code = 0x10000 + ((*code - 0xD800) << 10) + (*low - 0xDC00);
        position_ = behind;
      }
    }
  } else if (c == 'U') {
    code = TakeCodePoint(text_, position_, 8, 16, true);
  } else if (c >= '0' && c <= '7') {
    --position_;
    code = TakeCodePoint(text_, position_, 3, 8, false);
  } else {
    value += {'\\', c};
    return true;
  }
  if (!code || *code > 0x10FFFF) return false;
  if (IsHighSurrogate(*code) || IsLowSurrogate(*code)) {
    value += kReplacementCharacter;
  } else {
    AppendUtf8(*code, value);
  }
  return true;
}

bool PythonReader::List(char close, std::string& json, int depth) {
  ++position_;
  const size_t begin = json.size();
  json.push_back('[');
  bool comma = false;
  for (bool first = true; !Take(close); first = false) {
    if (!first) {
      if (!Take(',')) return false;
      comma = true;
      if (Take(close)) break;  // a comma may stand behind the last element
      json.push_back(',');
    }
    if (!Literal(json, depth + 1)) return false;
  }
  const bool parenthesised = close == ')' && !comma && json.size() > begin + 1;
  if (parenthesised) {
    json.erase(begin, 1);  // (x) is x, (x,) a tuple
  } else {
    json.push_back(']');
  }
  return true;
}

bool PythonReader::Dict(std::string& json, int depth) {
  ++position_;
  json.push_back('{');
  for (bool first = true; !Take('}'); first = false) {
    if (!first) {
      if (!Take(',')) return false;
      if (Take('}')) break;
      json.push_back(',');
    }
    SkipSpace();
    if (!Has('\'') && !Has('"')) return false;
    if (!Literal(json, depth + 1) || !Take(':')) return false;
    json.push_back(':');
    if (!Literal(json, depth + 1)) return false;
  }
  json.push_back('}');
  return true;
}

}  // namespace adder::text
