#include "text/jinja/format_digits.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "text/jinja/print.h"
#include "text/utf8.h"

namespace adder::text::jinja {

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

int ReadNumber(Runtime& runtime, std::string_view text, size_t& position) {
  int64_t number = 0;
  while (position < text.size() && text[position] >= '0' && text[position] <= '9') {
    number = number * 10 + (text[position++] - '0');
    if (number > 1'000'000'000) runtime.Fail("A width in a format is too large.");
  }
  return static_cast<int>(number);
}

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

std::string CharacterOf(Runtime& runtime, int64_t code) {
  if (code < 0 || code > 0x10FFFF) runtime.Fail("The code ", code, " is that of no character.");
  std::string character;
  AppendUtf8(code >= 0xD800 && code <= 0xDFFF ? 0xFFFD : static_cast<char32_t>(code), character);
  return character;
}

}  // namespace adder::text::jinja
