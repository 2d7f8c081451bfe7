// format(value, specification).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>

#include "text/jinja/format.h"
#include "text/jinja/format_digits.h"
#include "text/jinja/methods.h"
#include "text/jinja/print.h"
#include "text/jinja/python_text.h"

namespace adder::text::jinja {
namespace {

struct Specification {
  std::string fill = " ";
  char align = '\0';
  char sign = '\0';  // as given
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
    specification.fill = std::string(1, '0');
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
  const bool shown = specification.sign == '+' || specification.sign == ' ';
  return shown ? std::string(1, specification.sign) : "";
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

// Without a type: like repr, or with a precision like g, but with a digit behind the point, and the
// exponent begins one digit earlier.
std::string GeneralDigits(double number, std::optional<int> given_precision, bool alternate) {
  if (!given_precision) {
    std::string digits = FloatRepr(number);
    const size_t e = digits.find('e');
    const bool has_point = digits.find('.') != std::string::npos;
    if (alternate && e != std::string::npos && !has_point) digits.insert(e, 1, '.');
    return digits;
  }
  const int precision = std::max(*given_precision, 1);
  std::string digits = FloatDigits(number, 'g', precision, alternate);
  const std::string scientific = FloatDigits(number, 'e', precision - 1, alternate);
  const size_t e = scientific.find('e');
  const int power = std::atoi(scientific.c_str() + e + 1);
  if (power == precision - 1) {
    if (alternate) return scientific;
    std::string mantissa = scientific.substr(0, e);
    if (mantissa.find('.') != std::string::npos) {
      mantissa.erase(mantissa.find_last_not_of('0') + 1);
      if (mantissa.ends_with('.')) mantissa.pop_back();
    }
    return mantissa + scientific.substr(e);
  }
  if (digits.find_first_of(".e") == std::string::npos) digits += ".0";
  return digits;
}

std::string FormatFloat(Runtime& runtime, double value, const Specification& specification) {
  const char type = specification.type;
  std::string digits;
  if (!std::isfinite(value)) {
    digits = NonFinite(value, type == 'E' || type == 'F' || type == 'G');
  } else if (type == '%') {
    digits = FloatDigits(std::abs(value) * 100, 'f', specification.precision.value_or(6),
                         specification.alternate);
  } else if (type == '\0') {
    digits = GeneralDigits(std::abs(value), specification.precision, specification.alternate);
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
                    specification.sign == '\0' && !specification.alternate &&
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

}  // namespace

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
  if (parsed.grouping != '\0' && is_one_of("nc")) {
    runtime.Fail("A format of type ", std::string(1, parsed.type), " takes no separator.");
  }
  if (value.IsInteger()) {
    if (parsed.type == '\0' || is_one_of("bdoxXn")) {
      return FormatInteger(runtime, value.integer(), parsed);
    }
    if (parsed.type == 'c') {
      if (parsed.sign != '\0' || parsed.precision || parsed.alternate) {
        runtime.Fail("A character is formatted without a sign, # and a precision.");
      }
      return Align(runtime, parsed, "", CharacterOf(runtime, value.integer()), '<');
    }
  }
  if ((value.Is(Kind::kFloat) && parsed.type == '\0') || is_one_of("eEfFgGn%")) {
    return FormatFloat(runtime, value.number(), parsed);
  }
  runtime.Fail("A format of type ", std::string(1, parsed.type), " does not work on ",
               TypeName(value), ".");
}

}  // namespace adder::text::jinja
