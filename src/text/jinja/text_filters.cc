// Filters that work on texts, and tojson.
#include <algorithm>
#include <cmath>
#include <optional>

#include "text/jinja/arguments.h"
#include "text/jinja/filters.h"
#include "text/jinja/format.h"
#include "text/jinja/iteration.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace adder::text::jinja {
namespace {

// The value as a string; a string stays as it is, safe or not.
Value SoftString(Runtime& runtime, const Value& value) {
  return value.Is(Kind::kString) ? value : runtime.String(ToString(runtime, value));
}

Value String(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "string", arguments, {});
  return SoftString(runtime, input);
}

// A str method applied to whatever is given, as text.
Value CallMethod(Runtime& runtime, const Value& input, std::string_view method,
                 const Arguments& arguments) {
  return FindStringMethod(method)(runtime, SoftString(runtime, input), arguments);
}

Value Upper(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return CallMethod(runtime, input, "upper", arguments);
}
Value Lower(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return CallMethod(runtime, input, "lower", arguments);
}
Value Capitalize(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return CallMethod(runtime, input, "capitalize", arguments);
}

Value Trim(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "trim", arguments, {"chars"});
  Arguments chars;
  if (reader.Get(0) != nullptr) chars.positional.push_back(*reader.Get(0));
  return CallMethod(runtime, input, "strip", chars);
}

Value Center(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "center", arguments, {"width"});
  return CallMethod(runtime, input, "center", {{Value::Int(reader.Int(0, 80))}, {}});
}

// Other than str.title: only white space and opening brackets and "-" begin a word.
Value TitleFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "title", arguments, {});
  const Value value = SoftString(runtime, input);
  const std::string_view text = value.text();
  runtime.StepBytes(8 * text.size());
  std::string title;
  std::string word;
  const auto flush = [&] {
    if (word.empty()) return;
    const size_t first = ByteOffset(word, 1);
    title += jinja::Upper(word.substr(0, first)) + jinja::Lower(word.substr(first));
    word.clear();
  };
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    const char32_t c = DecodeUtf8(text, position);
    if (IsPythonSpace(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<') {
      flush();
      title += text.substr(begin, position - begin);
    } else {
      word += text.substr(begin, position - begin);
    }
  }
  flush();
  return runtime.String(std::move(title));
}

Value ReplaceFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "replace", arguments, {"old", "new", "count"}, 2);
  const int64_t count = reader.GetSome(2) == nullptr ? -1 : reader.Int(2);
  return ReplaceText(runtime, ToString(runtime, input), ToString(runtime, *reader.Get(0)),
                     ToString(runtime, *reader.Get(1)), count, false);
}

Value Indent(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "indent", arguments, {"width", "first", "blank"});
  RequireDefined(runtime, input);
  if (!input.Is(Kind::kString)) {
    runtime.Fail("indent takes a string, not ", TypeName(input), ".");
  }
  const bool safe = input.string().safe;
  const bool is_text = reader.Get(0) != nullptr && reader.Get(0)->Is(Kind::kString);
  const int64_t width = is_text ? 0 : reader.Int(0, 4);
  const std::string indention =
      is_text ? reader.Text(0)
              : Pad(runtime, "", static_cast<size_t>(std::max<int64_t>(width, 0)), 0, " ");
  const bool first = reader.Bool(1);
  const bool blank = reader.Bool(2);
  // Python adds a line break, so that a last empty line counts.
  const std::string text = Concat(input.text(), "\n");
  std::string indented;
  bool is_first = true;
  for (std::string_view line : SplitLines(text, false)) {
    if (!is_first) indented += '\n';
    const bool wanted = is_first ? first : blank || !line.empty();
    if (wanted) indented += indention;
    indented += line;
    is_first = false;
    runtime.StepBytes(64 + indention.size());
    runtime.CheckText(indented.size());
  }
  return runtime.String(std::move(indented), safe);
}

// Cuts at a word's end, unless it may cut words.
Value Truncate(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "truncate", arguments,
                              {"length", "killwords", "end", "leeway"});
  const int64_t length = reader.Int(0, 255);
  const std::string end = reader.Text(2, "...");
  const int64_t leeway = reader.GetSome(3) == nullptr ? 5 : reader.Int(3);
  const auto end_length = static_cast<int64_t>(CountCodePoints(end));
  if (length < end_length) {
    runtime.Fail("truncate: the length ", length, " is less than that of the end, ", end_length,
                 ".");
  }
  if (leeway < 0) runtime.Fail("truncate: the leeway ", leeway, " is negative.");
  const std::optional<int64_t> size = Length(input);
  if (!size) runtime.Fail("truncate takes a string, not ", TypeName(input), ".");
  if (*size <= length + leeway) return input;
  if (!input.Is(Kind::kString)) runtime.Fail("truncate takes a string, not ", TypeName(input), ".");
  Value cut =
      GetSlice(runtime, input, Value::None(), Value::Int(length - end_length), Value::None());
  if (!reader.Bool(1)) {
    const size_t space = cut.text().rfind(' ');
    if (space != std::string::npos) {
      cut = runtime.String(cut.text().substr(0, space), cut.string().safe);
    }
  }
  return ApplyBinary(runtime, BinaryOperator::kAdd, cut, runtime.String(end));
}

Value WordCount(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "wordcount", arguments, {});
  const std::string text = ToString(runtime, input);
  int64_t words = 0;
  bool in_word = false;
  for (size_t position = 0; position < text.size();) {
    const char32_t c = DecodeUtf8(text, position);
    const bool is_word = c == '_' || IsAlphabetic(c) || IsNumericCharacter(c);
    if (is_word && !in_word) ++words;
    in_word = is_word;
  }
  return Value::Int(words);
}

Value FormatFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    runtime.Fail("format takes values by position or by name, not both.");
  }
  Value values;
  if (arguments.named.empty()) {
    values = runtime.Tuple(arguments.positional);
  } else {
    auto dict = std::make_shared<DictObject>();
    for (const auto& [name, value] : arguments.named) dict->Set(runtime.String(name), value);
    values = runtime.Dict(std::move(dict));
  }
  return FormatPercent(runtime, SoftString(runtime, input), values);
}

Value Escape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "escape", arguments, {});
  if (input.Is(Kind::kString) && input.string().safe) return input;
  return runtime.String(EscapeHtml(ToString(runtime, input)), true);
}

Value ForceEscape(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "forceescape", arguments, {});
  return runtime.String(EscapeHtml(ToString(runtime, input)), true);
}

Value Safe(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "safe", arguments, {});
  return runtime.String(ToString(runtime, input), true);
}

std::string QuoteForUrl(std::string_view text, bool in_query) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string quoted;
  for (char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    const bool plain = (byte >= '0' && byte <= '9') || (byte >= 'a' && byte <= 'z') ||
                       (byte >= 'A' && byte <= 'Z') || c == '_' || c == '.' || c == '-' ||
                       c == '~' || (c == '/' && !in_query);
    if (plain) {
      quoted += c;
    } else if (c == ' ' && in_query) {
      quoted += '+';
    } else {
      quoted += '%';
      quoted += kHex[byte >> 4];
      quoted += kHex[byte & 15];
    }
  }
  return quoted;
}

Value UrlEncode(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "urlencode", arguments, {});
  if (input.Is(Kind::kString) || !IsIterable(input)) {
    return runtime.String(QuoteForUrl(ToString(runtime, input), false));
  }
  std::string query;
  const auto append = [&](const Value& key, const Value& value) {
    if (!query.empty()) query += '&';
    query += QuoteForUrl(ToString(runtime, key), true);
    query += '=';
    query += QuoteForUrl(ToString(runtime, value), true);
  };
  if (input.Is(Kind::kDict)) {
    for (const auto& [key, value] : input.dict().items) append(key, value);
  } else {
    for (const Value& pair : ToVector(runtime, input)) {
      const std::vector<Value> parts = ToVector(runtime, pair);
      if (parts.size() != 2) runtime.Fail("urlencode takes pairs of a key and a value.");
      append(parts[0], parts[1]);
    }
  }
  return runtime.String(std::move(query));
}

Value ToJsonFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "tojson", arguments,
                              {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = reader.Bool(0);
  style.sort_keys = reader.Bool(3);
  if (const Value* indent = reader.GetSome(1)) {
    if (indent->Is(Kind::kString)) {
      style.indent = indent->text();
    } else {
      const int64_t width = std::max<int64_t>(reader.Int(1), 0);
      style.indent = Pad(runtime, "", static_cast<size_t>(width), 0, " ");
    }
    style.item_separator = std::string(1, ',');
  }
  if (const Value* separators = reader.GetSome(2)) {
    const std::vector<Value> parts = ToVector(runtime, *separators);
    if (parts.size() != 2 || !parts[0].Is(Kind::kString) || !parts[1].Is(Kind::kString)) {
      runtime.Fail("tojson: separators should be two strings.");
    }
    style.item_separator = parts[0].text();
    style.key_separator = parts[1].text();
  }
  return runtime.String(ToJson(runtime, input, style));
}

constexpr NamedFilter kFilters[] = {
    {"capitalize", Capitalize},
    {"center", Center},
    {"e", Escape},
    {"escape", Escape},
    {"forceescape", ForceEscape},
    {"format", FormatFilter},
    {"indent", Indent},
    {"lower", Lower},
    {"replace", ReplaceFilter},
    {"safe", Safe},
    {"string", String},
    {"title", TitleFilter},
    {"tojson", ToJsonFilter},
    {"trim", Trim},
    {"truncate", Truncate},
    {"upper", Upper},
    {"urlencode", UrlEncode},
    {"wordcount", WordCount},
};

}  // namespace

std::span<const NamedFilter> TextFilters() { return kFilters; }

}  // namespace adder::text::jinja
