#include "text/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "core/error.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace adder::text::jinja {
namespace {

constexpr size_t kMaxSourceBytes = size_t{16} << 20;

// Line breaks of every convention as "\n", without the last one.
std::string NormalizeNewlines(const std::string& source, bool drop_last) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text += source[i];
    } else {
      text += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (drop_last && text.ends_with('\n')) text.pop_back();
  return text;
}

bool IsDigitChar(char c) { return c >= '0' && c <= '9'; }

int HexValue(char c) {
  if (IsDigitChar(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name)
      : name_(name), source_(NormalizeNewlines(ToValidUtf8(source), true)) {}

  std::vector<Token> Run() {
    while (position_ < source_.size()) LexRoot();
    Add(TokenKind::kEnd);
    return std::move(tokens_);
  }

 private:
  template <class... Parts>
  [[noreturn]] void FailHere(const Parts&... parts) const {
    Fail(name_, ", line ", line_, ": ", parts...);
  }

  std::string_view Rest() const { return std::string_view(source_).substr(position_); }

  // Moves on by `bytes`, counting lines.
  void Advance(size_t bytes) {
    line_ += static_cast<int>(
        std::count(source_.begin() + static_cast<ptrdiff_t>(position_),
                   source_.begin() + static_cast<ptrdiff_t>(position_ + bytes), '\n'));
    position_ += bytes;
  }
  void SkipSpace() { Advance(Rest().size() - StripLeft(Rest()).size()); }
  bool SkipIf(std::string_view text) {
    if (!Rest().starts_with(text)) return false;
    Advance(text.size());
    return true;
  }

  Token& Add(TokenKind kind, std::string_view text = {}) {
    Token token;
    token.kind = kind;
    token.line = line_;
    token.text = text;
    tokens_.push_back(std::move(token));
    return tokens_.back();
  }

  // '-', '+' or nothing.
  char Sign(size_t position) const {
    if (position >= source_.size()) return '\0';
    return source_[position] == '-' || source_[position] == '+' ? source_[position] : '\0';
  }

  // Adds the text up to `end`, stripped as the tag there asks for, and moves to the tag.
  void AddData(size_t end, char sign, bool is_variable) {
    std::string_view text = std::string_view(source_).substr(position_, end - position_);
    if (sign == '-') {
      text = StripRight(text);
    } else if (sign != '+' && !is_variable) {
      const size_t line_break = text.rfind('\n');
      const size_t line_start = line_break == std::string_view::npos ? 0 : line_break + 1;
      const bool at_line_start = line_start > 0 || position_ == 0 || source_[position_ - 1] == '\n';
      if (at_line_start && StripLeft(text.substr(line_start)).empty()) {
        text = text.substr(0, line_start);
      }
    }
    if (!text.empty()) Add(TokenKind::kData, text);
    Advance(end - position_);
  }

  // The next "{{", "{%" or "{#", or the end.
  size_t FindTag() const {
    size_t at = position_;
    while ((at = source_.find('{', at)) != std::string::npos) {
      const char next = at + 1 < source_.size() ? source_[at + 1] : '\0';
      if (next == '{' || next == '%' || next == '#') return at;
      ++at;
    }
    return source_.size();
  }

  void LexRoot() {
    const size_t tag = FindTag();
    if (tag == source_.size()) {
      Add(TokenKind::kData, Rest());
      Advance(Rest().size());
      return;
    }
    const char type = source_[tag + 1];
    const char sign = Sign(tag + 2);
    AddData(tag, sign, type == '{');
    Advance(sign == '\0' ? 2 : 3);
    if (type == '#') {
      SkipComment();
    } else if (type == '{') {
      Add(TokenKind::kVariableBegin);
      LexExpression("}}", TokenKind::kVariableEnd);
    } else if (!LexRaw()) {
      Add(TokenKind::kBlockBegin);
      LexExpression("%}", TokenKind::kBlockEnd);
    }
  }

  // Ends a tag at the current position if it closes here; `closing` is "%}", "}}" or "#}".
  bool SkipClosing(std::string_view closing) {
    const std::string_view rest = Rest();
    if (rest.starts_with('-') && rest.substr(1).starts_with(closing)) {
      Advance(1 + closing.size());
      SkipSpace();
      return true;
    }
    const bool is_block = closing != "}}";
    if (is_block && rest.starts_with('+') && rest.substr(1).starts_with(closing)) {
      Advance(1 + closing.size());
      return true;
    }
    if (!SkipIf(closing)) return false;
    if (is_block) SkipIf("\n");
    return true;
  }

  void SkipComment() {
    const size_t end = source_.find("#}", position_);
    if (end == std::string::npos) FailHere("A comment {# is not closed by #}.");
    const bool has_sign = end > position_ && Sign(end - 1) != '\0';
    Advance(end - position_ - (has_sign ? 1 : 0));
    SkipClosing("#}");
  }

  // Behind "{%": whether this is a raw block, which is then read to its end.
  bool LexRaw() {
    const size_t begin = position_;
    const int line = line_;
    const auto rewind = [&] {
      position_ = begin;
      line_ = line;
      return false;
    };
    SkipSpace();
    if (!SkipIf("raw")) return rewind();
    SkipSpace();
    if (SkipIf("-%}")) {
      SkipSpace();
    } else if (!SkipIf("%}")) {
      return rewind();
    }
    for (size_t at = source_.find("{%", position_); at != std::string::npos;
         at = source_.find("{%", at + 1)) {
      const char sign = Sign(at + 2);
      std::string_view tag = std::string_view(source_).substr(at + (sign == '\0' ? 2 : 3));
      tag = StripLeft(tag);
      if (!tag.starts_with("endraw")) continue;
      tag = StripLeft(tag.substr(6));
      if (!tag.starts_with("%}") && !tag.starts_with("-%}") && !tag.starts_with("+%}")) continue;
      AddData(at, sign, false);
      Advance(source_.size() - tag.size() - position_);
      SkipClosing("%}");
      return true;
    }
    FailHere("A block {% raw %} is not closed by {% endraw %}.");
  }

  void LexExpression(std::string_view closing, TokenKind closing_kind) {
    std::string open;  // closing brackets that are awaited
    while (true) {
      // Inside of brackets "}}" closes dicts.
      if (open.empty()) {
        Token end;
        end.kind = closing_kind;
        end.line = line_;
        if (SkipClosing(closing)) {
          tokens_.push_back(std::move(end));
          return;
        }
      }
      SkipSpace();
      if (position_ == source_.size()) {
        FailHere("The template ends inside of a tag that is to be closed by ", closing, ".");
      }
      if (open.empty() && IsClosing(closing)) continue;
      if (!LexNumber() && !LexName() && !LexString()) LexOperator(open);
    }
  }
  bool IsClosing(std::string_view closing) const {
    std::string_view rest = Rest();
    if (rest.starts_with('-') || (closing != "}}" && rest.starts_with('+'))) rest.remove_prefix(1);
    return rest.starts_with(closing);
  }

  // Length of digits that may be separated by single underscores, from `at`.
  template <class IsDigitOf>
  size_t DigitsLength(std::string_view rest, size_t at, IsDigitOf is_digit) const {
    size_t end = at;
    while (end < rest.size() &&
           (is_digit(rest[end]) ||
            (rest[end] == '_' && end > at && end + 1 < rest.size() && is_digit(rest[end + 1])))) {
      ++end;
    }
    return end - at;
  }

  bool LexNumber() {
    const std::string_view rest = Rest();
    if (!IsDigitChar(rest[0])) return false;
    if (const size_t length = FloatLength(rest)) {
      // A number behind a dot is an index: "a.0.1" is not a and 0.1.
      if (position_ == 0 || source_[position_ - 1] != '.') {
        AddFloat(rest.substr(0, length));
        return true;
      }
    }
    int base = 10;
    if (rest.size() > 2 && rest[0] == '0') {
      const char letter = static_cast<char>(rest[1] | 0x20);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    }
    const auto is_digit = [&base](char c) { return HexValue(c) >= 0 && HexValue(c) < base; };
    size_t length = 0;
    if (base != 10) {
      const size_t skip = rest[2] == '_' ? 3 : 2;
      length = DigitsLength(rest, skip, is_digit);
      if (length > 0) length += skip;
    }
    size_t digits_begin = length > 0 ? 2 : 0;
    if (length == 0) {
      base = 10;
      // A number that begins with 0 is 0.
      length = rest[0] == '0' ? DigitsLength(rest, 0, [](char c) { return c == '0'; })
                              : DigitsLength(rest, 0, is_digit);
    }
    AddInteger(rest.substr(0, length), digits_begin, base);
    return true;
  }

  // Length of a floating number at the start of `rest`, 0 when there is none.
  size_t FloatLength(std::string_view rest) const {
    size_t end = DigitsLength(rest, 0, IsDigitChar);
    bool is_float = false;
    if (end < rest.size() && rest[end] == '.') {
      if (const size_t digits = DigitsLength(rest, end + 1, IsDigitChar)) {
        end += 1 + digits;
        is_float = true;
      }
    }
    if (end < rest.size() && (rest[end] == 'e' || rest[end] == 'E')) {
      size_t exponent = end + 1;
      if (exponent < rest.size() && (rest[exponent] == '+' || rest[exponent] == '-')) ++exponent;
      if (const size_t digits = DigitsLength(rest, exponent, IsDigitChar)) {
        end = exponent + digits;
        is_float = true;
      }
    }
    return is_float ? end : 0;
  }

  static std::string WithoutUnderscores(std::string_view text) {
    std::string digits(text);
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    return digits;
  }

  void AddFloat(std::string_view text) {
    const std::string digits = WithoutUnderscores(text);
    double number = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (error == std::errc::result_out_of_range) {
      FailHere("The number ", text, " is outside the range of 64-bit floating numbers.");
    }
    Add(TokenKind::kFloat, text).number = number;
    Advance(text.size());
  }

  void AddInteger(std::string_view text, size_t digits_begin, int base) {
    const std::string digits = WithoutUnderscores(text.substr(digits_begin));
    int64_t integer = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), integer, base);
    if (error != std::errc()) FailHere("The integer ", text, " does not fit in 64 bits.");
    Add(TokenKind::kInteger, text).integer = integer;
    Advance(text.size());
  }

  bool LexName() {
    const std::string_view rest = Rest();
    size_t end = 0;
    while (end < rest.size()) {
      size_t next = end;
      const char32_t c = DecodeUtf8(rest, next);
      if (!(end == 0 ? IsIdentifierStart(c) : IsIdentifierPart(c))) break;
      end = next;
    }
    if (end == 0) return false;
    Add(TokenKind::kName, rest.substr(0, end));
    Advance(end);
    return true;
  }

  bool LexString() {
    const std::string_view rest = Rest();
    const char quote = rest[0];
    if (quote != '\'' && quote != '"') return false;
    size_t end = 1;
    while (end < rest.size() && rest[end] != quote) end += rest[end] == '\\' ? 2 : 1;
    if (end >= rest.size()) FailHere("A string is not closed by ", quote, ".");
    Add(TokenKind::kString).text = Unescape(rest.substr(1, end - 1));
    Advance(end + 1);
    return true;
  }

  // Python's escape sequences. A lone surrogate has no UTF-8 form and becomes U+FFFD.
  std::string Unescape(std::string_view text) const {
    std::string value;
    value.reserve(text.size());
    for (size_t i = 0; i < text.size();) {
      if (text[i] != '\\') {
        value += text[i++];
        continue;
      }
      const char c = text[i + 1];
      i += 2;
      constexpr std::string_view kLetters = "\\'\"abfnrtv\n";
      constexpr std::string_view kValues = "\\'\"\a\b\f\n\r\t\v";
      const size_t letter = kLetters.find(c);
      if (letter < kValues.size()) {
        value += kValues[letter];
      } else if (c == '\n') {
        continue;
      } else if (c == 'x' || c == 'u' || c == 'U') {
        AppendHexEscape(text, i, c == 'x' ? 2 : c == 'u' ? 4 : 8, value);
      } else if (c >= '0' && c <= '7') {
        AppendOctalEscape(text, --i, value);
      } else if (c == 'N') {
        FailHere("Escapes such as \\N{BULLET} are not supported; write \\u2022 instead.");
      } else {
        value += '\\';
        value += c;
      }
    }
    return value;
  }

  void AppendHexEscape(std::string_view text, size_t& i, size_t digits, std::string& value) const {
    char32_t code = 0;
    for (size_t end = i + digits; i < end; ++i) {
      const int digit = i < text.size() ? HexValue(text[i]) : -1;
      if (digit < 0) FailHere("An escape in a string has too few hexadecimal digits.");
      code = code * 16 + static_cast<char32_t>(digit);
    }
    if (code > 0x10FFFF) FailHere("An escape in a string names no Unicode character.");
    AppendUtf8(code >= 0xD800 && code <= 0xDFFF ? 0xFFFD : code, value);
  }

  static void AppendOctalEscape(std::string_view text, size_t& i, std::string& value) {
    char32_t code = 0;
    const size_t end = std::min(text.size(), i + 3);
    for (; i < end && text[i] >= '0' && text[i] <= '7'; ++i) {
      code = code * 8 + static_cast<char32_t>(text[i] - '0');
    }
    AppendUtf8(code, value);
  }

  void LexOperator(std::string& open) {
    const std::string_view rest = Rest();
    size_t length = 0;
    for (std::string_view op : {"//", "**", "==", "!=", ">=", "<="}) {
      if (rest.starts_with(op)) length = 2;
    }
    if (length == 0 &&
        std::string_view("+-/*%~[](){}><=.:|,;").find(rest[0]) != std::string_view::npos) {
      length = 1;
    }
    if (length == 0) {
      FailHere("The character ", rest.substr(0, ByteOffset(rest, 1)), " cannot stand here.");
    }
    const char c = rest[0];
    if (c == '(' || c == '[' || c == '{') {
      open += c == '(' ? ')' : c == '[' ? ']' : '}';
    } else if (c == ')' || c == ']' || c == '}') {
      if (open.empty()) FailHere("There is a ", c, " without an opening bracket.");
      if (open.back() != c) FailHere("There is a ", c, " where a ", open.back(), " should be.");
      open.pop_back();
    }
    Add(TokenKind::kOperator, rest.substr(0, length));
    Advance(length);
  }

  const std::string& name_;
  const std::string source_;
  size_t position_ = 0;
  int line_ = 1;
  std::vector<Token> tokens_;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source, const std::string& name) {
  if (source.size() > kMaxSourceBytes) {
    Fail(name, ": the template has ", source.size(), " bytes, more than the limit of ",
         kMaxSourceBytes, ".");
  }
  return Lexer(source, name).Run();
}

}  // namespace adder::text::jinja
