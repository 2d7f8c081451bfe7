// format % values.
#include <algorithm>
#include <cmath>
#include <optional>

#include "text/jinja/format.h"
#include "text/jinja/format_digits.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/python_text.h"

namespace adder::text::jinja {
namespace {

char LowerLetter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

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
    if (!value.IsInteger()) runtime_.Fail("%c takes a character or its code.");
    return CharacterOf(runtime_, value.integer());
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

}  // namespace

Value FormatPercent(Runtime& runtime, const Value& format, const Value& values) {
  return PercentFormatter(runtime, format, values).Run();
}

}  // namespace adder::text::jinja
