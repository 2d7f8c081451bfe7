#include "text/jinja/format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <vector>

#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace adder::text::jinja {
namespace {

// More digits than any double has; bounds what a specification can ask for.
constexpr int kMaxPrecision = 1100;

std::string Digits(uint64_t value, unsigned base, bool upper) {
  if (value == 0) return "0";
  std::string digits;
  for (; value != 0; value /= base) {
    const char digit = "0123456789abcdef"[value % base];
    digits += upper && digit >= 'a' ? static_cast<char>(digit - 'a' + 'A') : digit;
  }
  std::reverse(digits.begin(), digits.end());
  return digits;
}

uint64_t Magnitude(int64_t value) {
  return value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
}

// The digits of a non-negative number as printf's e, f or g writes them.
std::string FloatDigits(double number, char type, int precision, bool alternate) {
  const char format[] = {'%',
                         alternate ? '#' : '.',
                         alternate ? '.' : '*',
                         alternate ? '*' : type,
                         alternate ? type : '\0',
                         '\0'};
  // The longest: 309 digits before the point.
  char buffer[kMaxPrecision + 330];
  const int length = std::snprintf(buffer, sizeof buffer, format, precision, number);
  return std::string(buffer, static_cast<size_t>(std::clamp(length, 0, kMaxPrecision + 329)));
}

std::string NonFinite(double number, bool upper) {
  if (std::isnan(number)) return upper ? "NAN" : "nan";
  return upper ? "INF" : "inf";
}

char LowerLetter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

int ReadNumber(Runtime& runtime, std::string_view text, size_t& position) {
  int64_t number = 0;
  while (position < text.size() && text[position] >= '0' && text[position] <= '9') {
    number = number * 10 + (text[position++] - '0');
    if (number > 1'000'000'000) runtime.Fail("A width in a format is too large.");
  }
  return static_cast<int>(number);
}

// Any value with non-ASCII and non-printable characters escaped.
std::string AsciiRepr(Runtime& runtime, const Value& value) {
  const std::string repr = Repr(runtime, value);
  std::string ascii;
  for (size_t position = 0; position < repr.size();) {
    const char32_t c = DecodeUtf8(repr, position);
    if (c < 0x80) {
      ascii += static_cast<char>(c);
      continue;
    }
    char buffer[16];
    std::snprintf(buffer, sizeof buffer,
                  c < 0x100     ? "\\x%02x"
                  : c < 0x10000 ? "\\u%04x"
                                : "\\U%08x",
                  static_cast<unsigned>(c));
    ascii += buffer;
  }
  return ascii;
}

// --- %

class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Value& format, const Value& values)
      : runtime_(runtime), format_(format.text()), safe_(format.string().safe), values_(values) {
    // What Python takes for a mapping need not be used up.
    is_mapping_ = values.Is(Kind::kDict) || values.Is(Kind::kList) || values.Is(Kind::kRange) ||
                  values.IsUndefined();
  }

  Value Run() {
    std::string text;
    while (position_ < format_.size()) {
      const size_t percent = format_.find('%', position_);
      const size_t end = percent == std::string_view::npos ? format_.size() : percent;
      text += format_.substr(position_, end - position_);
      position_ = end;
      if (percent != std::string_view::npos) AppendConversion(text);
      runtime_.Step();
      runtime_.CheckText(text.size());
    }
    const size_t given = values_.Is(Kind::kTuple) ? values_.list().items.size() : 1;
    if (used_ < given && !is_mapping_) {
      runtime_.Fail("Not all values were used by the format.");
    }
    return runtime_.String(std::move(text), safe_);
  }

 private:
  struct Conversion {
    bool left = false;
    bool plus = false;
    bool space = false;
    bool zero = false;
    bool alternate = false;
    int64_t width = 0;
    std::optional<int> precision;
    char type = 's';
  };

  char Peek() const {
    if (position_ >= format_.size()) runtime_.Fail("A format ends in the middle of a conversion.");
    return format_[position_];
  }

  Value NextValue() {
    if (!values_.Is(Kind::kTuple)) {
      if (used_++ > 0) runtime_.Fail("There are too few values for the format.");
      return values_;
    }
    if (used_ >= values_.list().items.size()) {
      runtime_.Fail("There are too few values for the format.");
    }
    return values_.list().items[used_++];
  }

  int64_t NextWidth() {
    const Value value = NextValue();
    if (!value.IsInteger() || std::abs(value.number()) > 1e9) {
      runtime_.Fail("The width * of a format should be an integer.");
    }
    return value.integer();
  }

  Value NamedValue() {
    size_t depth = 1;
    const size_t begin = ++position_;
    for (; depth > 0; ++position_) {
      if (Peek() == '(') ++depth;
      if (Peek() == ')') --depth;
    }
    const std::string key(format_.substr(begin, position_ - begin - 1));
    if (!is_mapping_) runtime_.Fail("A format with names needs a dict.");
    const Value* found = values_.Is(Kind::kDict) ? values_.dict().Find(key) : nullptr;
    if (found == nullptr) {
      RequireDefined(runtime_, values_);
      runtime_.Fail("The format names ", StringRepr(key), ", which is not in the dict.");
    }
    return *found;
  }

  void AppendConversion(std::string& text) {
    ++position_;
    Conversion conversion;
    std::optional<Value> value;
    if (Peek() == '(') value = NamedValue();
    for (bool flags = true; flags;) {
      switch (Peek()) {
        case '-':
          conversion.left = true;
          break;
        case '+':
          conversion.plus = true;
          break;
        case ' ':
          conversion.space = true;
          break;
        case '0':
          conversion.zero = true;
          break;
        case '#':
          conversion.alternate = true;
          break;
        default:
          flags = false;
      }
      if (flags) ++position_;
    }
    if (Peek() == '*') {
      ++position_;
      conversion.width = NextWidth();
      conversion.left = conversion.left || conversion.width < 0;
      conversion.width = std::abs(conversion.width);
    } else {
      conversion.width = ReadNumber(runtime_, format_, position_);
    }
    if (Peek() == '.') {
      ++position_;
      conversion.precision =
          Peek() == '*' ? (++position_, static_cast<int>(std::max<int64_t>(NextWidth(), 0)))
                        : ReadNumber(runtime_, format_, position_);
    }
    while (Peek() == 'h' || Peek() == 'l' || Peek() == 'L') ++position_;
    conversion.type = Peek();
    ++position_;
    if (conversion.type == '%') {
      text += '%';
      return;
    }
    AppendValue(conversion, value ? *value : NextValue(), text);
  }

  void AppendValue(const Conversion& conversion, const Value& value, std::string& text) {
    const char type = conversion.type;
    if (type == 's' || type == 'r' || type == 'a' || type == 'c') {
      std::string body = type == 's'   ? ToString(runtime_, value)
                         : type == 'r' ? Repr(runtime_, value)
                         : type == 'a' ? AsciiRepr(runtime_, value)
                                       : Character(value);
      if (safe_ && !(type == 's' && value.Is(Kind::kString) && value.string().safe)) {
        body = EscapeHtml(body);
      }
      if (conversion.precision && type != 'c') {
        body.resize(ByteOffset(body, static_cast<size_t>(*conversion.precision)));
      }
      AppendPadded("", std::move(body), conversion, false, text);
      return;
    }
    if (std::string_view("diuoxX").find(type) != std::string_view::npos) {
      AppendInteger(conversion, value, text);
    } else if (std::string_view("eEfFgG").find(type) != std::string_view::npos) {
      AppendFloat(conversion, value, text);
    } else {
      runtime_.Fail("A format has the unknown conversion %", std::string(1, type), ".");
    }
  }

  std::string Character(const Value& value) {
    if (value.Is(Kind::kString) && value.string().length == 1) return value.text();
    if (!value.IsInteger() || value.integer() < 0 || value.integer() > 0x10FFFF) {
      runtime_.Fail("%c takes a character or its code.");
    }
    std::string character;
    const auto code = static_cast<char32_t>(value.integer());
    AppendUtf8(code >= 0xD800 && code <= 0xDFFF ? 0xFFFD : code, character);
    return character;
  }

  static std::string Sign(const Conversion& conversion, bool negative) {
    return negative ? "-" : conversion.plus ? "+" : conversion.space ? " " : "";
  }

  void AppendInteger(const Conversion& conversion, const Value& value, std::string& text) {
    RequireDefined(runtime_, value);
    const char type = LowerLetter(conversion.type);
    const bool is_decimal = type != 'x' && type != 'o';
    if (!value.IsInteger() && !(is_decimal && value.Is(Kind::kFloat))) {
      runtime_.Fail("%", std::string(1, conversion.type), " takes a number, not ", TypeName(value),
                    ".");
    }
    int64_t integer = value.integer();
    if (value.Is(Kind::kFloat)) {
      const double number = std::trunc(value.number());
      if (!(number >= -0x1p63 && number < 0x1p63)) {
        runtime_.Fail("The number is too large for an integer of 64 bits.");
      }
      integer = static_cast<int64_t>(number);
    }
    const bool upper = conversion.type == 'X';
    std::string digits = Digits(Magnitude(integer), type == 'x' ? 16 : type == 'o' ? 8 : 10, upper);
    if (conversion.precision && *conversion.precision > static_cast<int>(digits.size())) {
      digits =
          Pad(runtime_, digits, static_cast<size_t>(*conversion.precision) - digits.size(), 0, "0");
    }
    std::string prefix = Sign(conversion, integer < 0);
    if (conversion.alternate && !is_decimal) prefix += type == 'o' ? "0o" : upper ? "0X" : "0x";
    AppendPadded(prefix, std::move(digits), conversion, conversion.zero, text);
  }

  void AppendFloat(const Conversion& conversion, const Value& value, std::string& text) {
    RequireDefined(runtime_, value);
    if (!value.IsNumber()) {
      runtime_.Fail("%", std::string(1, conversion.type), " takes a number, not ", TypeName(value),
                    ".");
    }
    const double number = value.number();
    const int precision = std::min(conversion.precision.value_or(6), kMaxPrecision);
    const std::string digits =
        std::isfinite(number)
            ? FloatDigits(std::abs(number), conversion.type, precision, conversion.alternate)
            : NonFinite(number, conversion.type < 'a');
    AppendPadded(Sign(conversion, std::signbit(number) && !std::isnan(number)), digits, conversion,
                 conversion.zero, text);
  }

  void AppendPadded(const std::string& prefix, std::string body, const Conversion& conversion,
                    bool zeros, std::string& text) {
    const auto length = static_cast<int64_t>(prefix.size() + CountCodePoints(body));
    const auto missing = static_cast<size_t>(std::max<int64_t>(conversion.width - length, 0));
    if (conversion.left) {
      text += prefix + Pad(runtime_, body, 0, missing, " ");
    } else if (zeros) {
      text += prefix + Pad(runtime_, body, missing, 0, "0");
    } else {
      text += Pad(runtime_, prefix + body, missing, 0, " ");
    }
  }

  Runtime& runtime_;
  const std::string_view format_;
  const bool safe_;
  const Value& values_;
  bool is_mapping_ = false;
  size_t position_ = 0;
  size_t used_ = 0;
};

// --- format()

struct Specification {
  std::string fill = " ";
  char align = '\0';
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  int width = 0;
  char grouping = '\0';
  std::optional<int> precision;
  char type = '\0';
};

bool IsAlign(char c) { return c == '<' || c == '>' || c == '=' || c == '^'; }

Specification ParseSpecification(Runtime& runtime, std::string_view text) {
  Specification specification;
  size_t position = 0;
  bool fill_given = false;
  const auto at = [&](size_t i) { return i < text.size() ? text[i] : '\0'; };
  const size_t fill = text.empty() ? 0 : ByteOffset(text, 1);
  if (fill > 0 && IsAlign(at(fill))) {
    specification.fill = text.substr(0, fill);
    specification.align = text[fill];
    position = fill + 1;
    fill_given = true;
  } else if (IsAlign(at(0))) {
    specification.align = text[0];
    position = 1;
  }
  if (at(position) == '+' || at(position) == '-' || at(position) == ' ') {
    specification.sign = text[position++];
  }
  if (at(position) == '#') {
    specification.alternate = true;
    ++position;
  }
  // With a fill of its own, a 0 is the first digit of the width.
  if (!fill_given && at(position) == '0') {
    specification.zero = true;
    specification.fill = "0";
    ++position;
  }
  specification.width = ReadNumber(runtime, text, position);
  if (at(position) == ',' || at(position) == '_') specification.grouping = text[position++];
  if (at(position) == '.') {
    const size_t begin = ++position;
    specification.precision = ReadNumber(runtime, text, position);
    if (position == begin) runtime.Fail("A format specification has no digits behind its point.");
  }
  if (position < text.size()) specification.type = text[position++];
  if (position != text.size()) {
    runtime.Fail("The format specification ", StringRepr(text), " is not valid.");
  }
  return specification;
}

std::string Group(const std::string& digits, char separator, size_t every) {
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % every == 0) grouped += separator;
    grouped += digits[i];
  }
  return grouped;
}

std::string Align(Runtime& runtime, const Specification& specification, const std::string& prefix,
                  const std::string& body, char default_align) {
  const auto length = static_cast<int>(CountCodePoints(prefix) + CountCodePoints(body));
  const auto missing = static_cast<size_t>(std::max(specification.width - length, 0));
  const char align = specification.align != '\0' ? specification.align
                     : specification.zero        ? '='
                                                 : default_align;
  switch (align) {
    case '<':
      return Pad(runtime, prefix + body, 0, missing, specification.fill);
    case '^':
      return Pad(runtime, prefix + body, missing / 2, missing - missing / 2, specification.fill);
    case '=':
      return prefix + Pad(runtime, body, missing, 0, specification.fill);
    default:
      return Pad(runtime, prefix + body, missing, 0, specification.fill);
  }
}

// Grouped digits that are filled up with zeros keep their separators.
std::string GroupNumber(const Specification& specification, const std::string& whole,
                        size_t width_left, size_t every) {
  if (specification.grouping == '\0') return whole;
  std::string digits = whole;
  const bool zeros =
      specification.fill == "0" &&
      (specification.align == '=' || (specification.align == '\0' && specification.zero));
  std::string grouped = Group(digits, specification.grouping, every);
  while (zeros && grouped.size() < width_left) {
    digits.insert(digits.begin(), '0');
    grouped = Group(digits, specification.grouping, every);
  }
  return grouped;
}

std::string SignText(const Specification& specification, bool negative) {
  if (negative) return "-";
  return specification.sign == '-' ? "" : std::string(1, specification.sign);
}

size_t WidthLeft(const Specification& specification, size_t used) {
  // Separators are only put into widths that are sensible for a number.
  const auto width = static_cast<size_t>(std::min(specification.width, 4096));
  return width > used ? width - used : 0;
}

std::string FormatInteger(Runtime& runtime, int64_t value, const Specification& specification) {
  if (specification.precision) runtime.Fail("An integer format takes no precision.");
  unsigned base = 10;
  std::string prefix = SignText(specification, value < 0);
  const auto use = [&](unsigned b, std::string_view mark) {
    base = b;
    if (specification.alternate) prefix += mark;
  };
  switch (specification.type) {
    case 'b':
      use(2, "0b");
      break;
    case 'o':
      use(8, "0o");
      break;
    case 'x':
      use(16, "0x");
      break;
    case 'X':
      use(16, "0X");
      break;
    default:
      break;
  }
  if (base != 10 && specification.grouping == ',') {
    runtime.Fail("The separator , only works with decimal numbers.");
  }
  const std::string digits = Digits(Magnitude(value), base, specification.type == 'X');
  const std::string grouped = GroupNumber(
      specification, digits, WidthLeft(specification, prefix.size()), base == 10 ? 3 : 4);
  return Align(runtime, specification, prefix, grouped, '>');
}

std::string FormatFloat(Runtime& runtime, double value, const Specification& specification) {
  const char type = specification.type;
  std::string digits;
  if (!std::isfinite(value)) {
    digits = NonFinite(value, type == 'E' || type == 'F' || type == 'G');
  } else if (type == '%') {
    digits = FloatDigits(std::abs(value) * 100, 'f', specification.precision.value_or(6),
                         specification.alternate);
  } else if (type == '\0' && !specification.precision) {
    digits = FloatRepr(std::abs(value));
  } else if (type == '\0') {
    // Like g, but with a digit behind the point; the exponent begins one digit earlier.
    const int precision = std::max(*specification.precision, 1);
    digits = FloatDigits(std::abs(value), 'g', precision, false);
    const std::string exponent = FloatDigits(std::abs(value), 'e', precision - 1, false);
    const int power = std::atoi(exponent.c_str() + exponent.find('e') + 1);
    if (power == precision - 1 && power >= 0 && value != 0) {
      digits = FloatDigits(std::abs(value), 'e', precision - 1, false);
      const size_t e = digits.find('e');
      std::string mantissa = digits.substr(0, e);
      if (mantissa.find('.') != std::string::npos) {
        mantissa.erase(mantissa.find_last_not_of('0') + 1);
        if (mantissa.ends_with('.')) mantissa.pop_back();
      }
      digits = mantissa + digits.substr(e);
    } else if (digits.find_first_of(".e") == std::string::npos) {
      digits += ".0";
    }
  } else {
    digits = FloatDigits(std::abs(value), type == 'n' ? 'g' : type,
                         specification.precision.value_or(6), specification.alternate);
  }
  if (type == '%') digits += '%';
  const std::string prefix = SignText(specification, std::signbit(value) && !std::isnan(value));
  const size_t whole_end = std::min(digits.find_first_not_of("0123456789"), digits.size());
  const std::string rest = digits.substr(whole_end);
  if (std::isfinite(value)) {
    digits = GroupNumber(specification, digits.substr(0, whole_end),
                         WidthLeft(specification, prefix.size() + rest.size()), 3) +
             rest;
  }
  return Align(runtime, specification, prefix, digits, '>');
}

std::string FormatText(Runtime& runtime, const std::string& text,
                       const Specification& specification) {
  const bool fine = (specification.type == '\0' || specification.type == 's') &&
                    specification.sign == '-' && !specification.alternate &&
                    specification.grouping == '\0' && specification.align != '=';
  if (!fine) runtime.Fail("The format specification is for numbers, the value is a string.");
  std::string body = text;
  if (specification.precision) {
    body.resize(ByteOffset(body, static_cast<size_t>(*specification.precision)));
  }
  Specification aligned = specification;
  if (aligned.align == '\0') aligned.align = '<';
  return Align(runtime, aligned, "", body, '<');
}

// --- str.format

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, bool safe, const Arguments& arguments)
      : runtime_(runtime), safe_(safe), arguments_(arguments) {}

  std::string Run(std::string_view format, int depth) {
    if (depth > 1) runtime_.Fail("Fields of a format are nested too deeply.");
    std::string text;
    size_t position = 0;
    while (position < format.size()) {
      const size_t brace = format.find_first_of("{}", position);
      if (brace == std::string_view::npos) break;
      text += format.substr(position, brace - position);
      position = brace + 1;
      if (position < format.size() && format[position] == format[brace]) {
        text += format[brace];
        ++position;
        continue;
      }
      if (format[brace] == '}') runtime_.Fail("A format has a single }.");
      const size_t end = FieldEnd(format, position);
      text += Field(format.substr(position, end - position), depth);
      position = end + 1;
      runtime_.Step();
      runtime_.CheckText(text.size());
    }
    return text += format.substr(position);
  }

 private:
  size_t FieldEnd(std::string_view format, size_t position) const {
    for (int depth = 1; position < format.size(); ++position) {
      if (format[position] == '{') ++depth;
      if (format[position] == '}' && --depth == 0) return position;
    }
    runtime_.Fail("A field of a format is not closed by }.");
  }

  std::string Field(std::string_view field, int depth) {
    // Brackets hold keys, which may have any character.
    size_t name_end = 0;
    for (bool in_brackets = false; name_end < field.size(); ++name_end) {
      const char c = field[name_end];
      if (c == '[') in_brackets = true;
      if (c == ']') in_brackets = false;
      if (!in_brackets && (c == '!' || c == ':')) break;
    }
    Value value = Lookup(field.substr(0, name_end));
    std::string_view rest = field.substr(name_end);
    if (rest.starts_with('!')) {
      const char conversion = rest.size() > 1 ? rest[1] : '\0';
      if (conversion != 's' && conversion != 'r' && conversion != 'a') {
        runtime_.Fail("The conversion behind ! in a format should be s, r or a.");
      }
      value = runtime_.String(conversion == 's'   ? ToString(runtime_, value)
                              : conversion == 'r' ? Repr(runtime_, value)
                                                  : AsciiRepr(runtime_, value));
      rest.remove_prefix(2);
      if (!rest.empty() && rest[0] != ':') runtime_.Fail("Expected : behind a conversion.");
    }
    const std::string specification = rest.empty() ? std::string() : Run(rest.substr(1), depth + 1);
    std::string text = FormatValue(runtime_, value, specification);
    const bool is_safe = value.Is(Kind::kString) && value.string().safe;
    return safe_ && !is_safe ? EscapeHtml(text) : text;
  }

  static bool IsNumber(std::string_view text) {
    return !text.empty() && text.size() < 10 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  }

  Value First(std::string_view name) {
    if (name.empty() || IsNumber(name)) {
      if (name.empty() == numbered_ && used_any_) {
        runtime_.Fail("A format cannot mix {} and {0}.");
      }
      used_any_ = true;
      numbered_ = !name.empty();
      size_t position = 0;
      const size_t index =
          name.empty() ? next_++ : static_cast<size_t>(ReadNumber(runtime_, name, position));
      if (index >= arguments_.positional.size()) {
        runtime_.Fail("There are too few values for the format.");
      }
      return arguments_.positional[index];
    }
    for (const auto& [given, value] : arguments_.named) {
      if (given == name) return value;
    }
    runtime_.Fail("The format names ", StringRepr(name), ", which is not given.");
  }

  Value Lookup(std::string_view path) {
    const size_t end = std::min(path.find_first_of(".["), path.size());
    Value value = First(path.substr(0, end));
    path.remove_prefix(end);
    while (!path.empty()) {
      const bool is_key = path[0] == '[';
      if (!is_key && path[0] != '.') runtime_.Fail("Expected . or [ in a field of a format.");
      const size_t part_end =
          is_key ? path.find(']') : std::min(path.find_first_of(".[", 1), path.size());
      if (part_end == std::string_view::npos) runtime_.Fail("A field of a format lacks a ].");
      const std::string part(path.substr(1, part_end - 1));
      if (part.empty()) runtime_.Fail("A field of a format has an empty name.");
      size_t position = 0;
      if (!is_key) {
        value = GetAttribute(runtime_, value, part);
      } else if (IsNumber(part)) {
        value = GetElement(runtime_, value, Value::Int(ReadNumber(runtime_, part, position)));
      } else {
        value = GetElement(runtime_, value, runtime_.String(part));
      }
      path.remove_prefix(part_end + (is_key ? 1 : 0));
    }
    return value;
  }

  Runtime& runtime_;
  const bool safe_;
  const Arguments& arguments_;
  size_t next_ = 0;
  bool used_any_ = false;
  bool numbered_ = false;
};

}  // namespace

Value FormatPercent(Runtime& runtime, const Value& format, const Value& values) {
  return PercentFormatter(runtime, format, values).Run();
}

Value FormatBraces(Runtime& runtime, const Value& format, const Arguments& arguments) {
  const bool safe = format.string().safe;
  return runtime.String(BraceFormatter(runtime, safe, arguments).Run(format.text(), 0), safe);
}

std::string FormatValue(Runtime& runtime, const Value& value, std::string_view specification) {
  if (specification.empty()) return ToString(runtime, value);
  if (!value.IsNumber() && !value.Is(Kind::kString)) {
    runtime.Fail("A value of type ", TypeName(value), " takes no format specification.");
  }
  const Specification parsed = ParseSpecification(runtime, specification);
  if (parsed.precision.value_or(0) > kMaxPrecision) {
    runtime.Fail("A precision in a format is larger than ", kMaxPrecision, ".");
  }
  if (value.Is(Kind::kString)) return FormatText(runtime, value.text(), parsed);
  const auto is_one_of = [&parsed](std::string_view types) {
    return parsed.type != '\0' && types.find(parsed.type) != std::string_view::npos;
  };
  if (value.IsInteger()) {
    if (parsed.type == '\0' || is_one_of("bdoxXn")) {
      return FormatInteger(runtime, value.integer(), parsed);
    }
    if (parsed.type == 'c') {
      std::string character;
      if (value.integer() < 0 || value.integer() > 0x10FFFF) {
        runtime.Fail("The code of a character is out of range.");
      }
      const auto code = static_cast<char32_t>(value.integer());
      AppendUtf8(code >= 0xD800 && code <= 0xDFFF ? 0xFFFD : code, character);
      return Align(runtime, parsed, "", character, '<');
    }
  }
  if ((value.Is(Kind::kFloat) && parsed.type == '\0') || is_one_of("eEfFgGn%")) {
    return FormatFloat(runtime, value.number(), parsed);
  }
  runtime.Fail("A format of type ", std::string(1, parsed.type), " does not work on ",
               TypeName(value), ".");
}

}  // namespace adder::text::jinja
