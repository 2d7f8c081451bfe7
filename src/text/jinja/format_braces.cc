// format.format(arguments).
#include <algorithm>

#include "text/jinja/format.h"
#include "text/jinja/format_digits.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/python_text.h"

namespace adder::text::jinja {
namespace {

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

Value FormatBraces(Runtime& runtime, const Value& format, const Arguments& arguments) {
  const bool safe = format.string().safe;
  return runtime.String(BraceFormatter(runtime, safe, arguments).Run(format.text(), 0), safe);
}

}  // namespace adder::text::jinja
