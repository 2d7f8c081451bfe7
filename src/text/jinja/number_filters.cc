// Filters that work on numbers, or turn something into one.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "text/jinja/arguments.h"
#include "text/jinja/filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace adder::text::jinja {
namespace {

// A number's text as Python prepares it: without white space around it, digits of every script as
// ASCII, without the underscores between digits. Nothing when an underscore stands elsewhere.
std::optional<std::string> PrepareNumber(std::string_view text) {
  text = StripRight(StripLeft(text));
  std::string prepared;
  bool after_digit = false;
  for (size_t position = 0; position < text.size();) {
    const char32_t c = DecodeUtf8(text, position);
    if (c == '_') {
      const bool before_digit =
          position < text.size() && std::isalnum(static_cast<unsigned char>(text[position])) != 0;
      if (!after_digit || !before_digit) return std::nullopt;
      after_digit = false;
      continue;
    }
    const int digit = DecimalValue(c);
    if (digit >= 0) {
      prepared += static_cast<char>('0' + digit);
    } else if (c < 0x80) {
      prepared += static_cast<char>(c);
    } else {
      return std::nullopt;
    }
    after_digit = digit >= 0 || (c < 0x80 && std::isalpha(static_cast<int>(c)) != 0);
  }
  return prepared;
}

// Whether a sign at the start, which is removed, is a minus.
bool TakeSign(std::string_view& digits) {
  const bool negative = digits.starts_with('-');
  if (negative || digits.starts_with('+')) digits.remove_prefix(1);
  return negative;
}

std::optional<double> ParseFloat(std::string_view text) {
  const auto prepared = PrepareNumber(text);
  if (!prepared) return std::nullopt;
  std::string_view digits = *prepared;
  const bool negative = TakeSign(digits);
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  std::string lower = Lower(digits);
  double number = 0;
  if (lower == "inf" || lower == "infinity") {
    number = HUGE_VAL;
  } else if (lower == "nan") {
    number = std::nan("");
  } else {
    if (std::isalpha(static_cast<unsigned char>(lower[0])) != 0) return std::nullopt;
    const char* end = lower.data() + lower.size();
    const auto [rest, error] = std::from_chars(lower.data(), end, number);
    if (rest != end || error == std::errc::invalid_argument) return std::nullopt;
    // Too large becomes infinite and too small 0, as in Python.
    if (error == std::errc::result_out_of_range) number = std::strtod(lower.c_str(), nullptr);
  }
  return negative ? -number : number;
}

// Python's int(text, base): nothing when it is not a number in that base.
std::optional<int64_t> ParseInteger(Runtime& runtime, std::string_view text, int64_t base) {
  if (base != 0 && (base < 2 || base > 36)) return std::nullopt;
  const auto prepared = PrepareNumber(text);
  if (!prepared) return std::nullopt;
  std::string_view digits = *prepared;
  const bool negative = TakeSign(digits);
  const char letter =
      digits.size() > 1 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : ' ';
  const int marked = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (marked != 0 && (base == 0 || base == marked)) {
    base = marked;
    digits.remove_prefix(2);
  } else if (base == 0) {
    if (digits.size() > 1 && digits[0] == '0' && digits.find_first_not_of('0') != digits.npos) {
      return std::nullopt;
    }
    base = 10;
  }
  const std::string signed_digits = Concat(negative ? "-" : "", digits);
  if (digits.empty() || digits[0] == '-' || digits[0] == '+') return std::nullopt;
  int64_t number = 0;
  const char* end = signed_digits.data() + signed_digits.size();
  const auto [rest, error] =
      std::from_chars(signed_digits.data(), end, number, static_cast<int>(base));
  if (rest != end || error == std::errc::invalid_argument) return std::nullopt;
  if (error != std::errc()) runtime.Fail("int: the number does not fit in 64 bits.");
  return number;
}

// A float without its fraction. Infinity and NaN give nothing.
std::optional<int64_t> Truncated(Runtime& runtime, double number) {
  if (!std::isfinite(number)) return std::nullopt;
  const double whole = std::trunc(number);
  if (!(whole >= -0x1p63 && whole < 0x1p63)) {
    runtime.Fail("The number does not fit in an integer of 64 bits.");
  }
  return static_cast<int64_t>(whole);
}

Value Abs(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "abs", arguments, {});
  RequireDefined(runtime, input);
  if (!input.IsNumber()) runtime.Fail("abs takes a number, not ", TypeName(input), ".");
  const bool negative = input.Is(Kind::kFloat) ? std::signbit(input.number()) : input.integer() < 0;
  return ApplyUnary(runtime, negative ? UnaryOperator::kNegative : UnaryOperator::kPositive, input);
}

Value Int(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "int", arguments, {"default", "base"});
  RequireDefined(runtime, input);
  const Value absent = reader.Get(0, Value::Int(0));
  const int64_t base = reader.Int(1, 10);
  std::optional<int64_t> integer;
  if (input.Is(Kind::kString)) {
    integer = ParseInteger(runtime, input.text(), base);
    if (!integer) {
      if (const auto number = ParseFloat(input.text())) integer = Truncated(runtime, *number);
    }
  } else if (input.IsInteger()) {
    integer = input.integer();
  } else if (input.Is(Kind::kFloat)) {
    if (std::isinf(input.number())) runtime.Fail("int: infinity is no integer.");
    integer = Truncated(runtime, input.number());
  }
  return integer ? Value::Int(*integer) : absent;
}

Value Float(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "float", arguments, {"default"});
  RequireDefined(runtime, input);
  if (input.IsNumber()) return Value::Float(input.number());
  const auto number = input.Is(Kind::kString) ? ParseFloat(input.text()) : std::optional<double>();
  return number ? Value::Float(*number) : reader.Get(0, Value::Float(0));
}

// Half to even, of the number's exact value.
double RoundFloat(double number, int64_t precision) {
  if (!std::isfinite(number) || precision > 330) return number;
  if (precision < -308) return std::copysign(0.0, number);
  if (precision < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-precision));
    return std::nearbyint(number / unit) * unit;
  }
  char buffer[700];
  std::snprintf(buffer, sizeof buffer, "%.*f", static_cast<int>(precision), number);
  return std::strtod(buffer, nullptr);
}

Value RoundInteger(Runtime& runtime, int64_t number, int64_t precision) {
  if (precision >= 0) return Value::Int(number);
  if (precision < -18) return Value::Int(0);
  int64_t unit = 1;
  for (int64_t i = 0; i < -precision; ++i) unit *= 10;
  int64_t quotient = number / unit;
  const int64_t rest = number % unit;
  const int64_t magnitude = rest < 0 ? -rest : rest;
  const bool up = magnitude > unit / 2 || (magnitude == unit / 2 && quotient % 2 != 0);
  if (up) quotient += number < 0 ? -1 : 1;
  return ApplyBinary(runtime, BinaryOperator::kMultiply, Value::Int(quotient), Value::Int(unit));
}

Value Round(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "round", arguments, {"precision", "method"});
  const std::string method = reader.Text(1, "common");
  if (method != "common" && method != "ceil" && method != "floor") {
    runtime.Fail("round: the method should be common, ceil or floor.");
  }
  RequireDefined(runtime, input);
  if (!input.IsNumber()) runtime.Fail("round takes a number, not ", TypeName(input), ".");
  const int64_t precision = reader.Int(0);
  if (method == "common") {
    return input.IsInteger() ? RoundInteger(runtime, input.integer(), precision)
                             : Value::Float(RoundFloat(input.number(), precision));
  }
  const Value unit =
      ApplyBinary(runtime, BinaryOperator::kPower, Value::Int(10), Value::Int(precision));
  Value scaled = ApplyBinary(runtime, BinaryOperator::kMultiply, input, unit);
  if (scaled.Is(Kind::kFloat)) {
    const double number = scaled.number();
    const auto whole =
        Truncated(runtime, method == "ceil" ? std::ceil(number) : std::floor(number));
    if (!whole) runtime.Fail("round: infinity and NaN cannot be rounded.");
    scaled = Value::Int(*whole);
  }
  return ApplyBinary(runtime, BinaryOperator::kDivide, scaled, unit);
}

Value FileSizeFormat(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "filesizeformat", arguments, {"binary"});
  RequireDefined(runtime, input);
  const auto parsed = input.IsNumber()          ? std::optional<double>(input.number())
                      : input.Is(Kind::kString) ? ParseFloat(input.text())
                                                : std::optional<double>();
  if (!parsed) runtime.Fail("filesizeformat takes a number, not ", TypeName(input), ".");
  const double bytes = *parsed;
  const bool binary = reader.Bool(0);
  const double base = binary ? 1024 : 1000;
  if (bytes == 1) return runtime.String("1 Byte");
  if (bytes < base) {
    const auto whole = Truncated(runtime, bytes);
    if (!whole) runtime.Fail("filesizeformat: infinity is no size.");
    return runtime.String(Concat(*whole, " Bytes"));
  }
  constexpr std::string_view kPrefixes = "kMGTPEZY";
  double unit = base * base;
  size_t prefix = 0;
  for (; bytes >= unit && prefix + 1 < kPrefixes.size(); ++prefix) unit *= base;
  char buffer[400];
  std::snprintf(buffer, sizeof buffer, "%.1f", base * bytes / unit);
  const char letter = binary && prefix == 0 ? 'K' : kPrefixes[prefix];
  return runtime.String(Concat(buffer, " ", std::string(1, letter), binary ? "iB" : "B"));
}

constexpr NamedFilter kFilters[] = {{"abs", Abs},
                                    {"filesizeformat", FileSizeFormat},
                                    {"float", Float},
                                    {"int", Int},
                                    {"round", Round}};

}  // namespace

std::span<const NamedFilter> NumberFilters() { return kFilters; }

}  // namespace adder::text::jinja
