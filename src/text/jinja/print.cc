#include "text/jinja/print.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "text/jinja/iteration.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace adder::text::jinja {
namespace {

void AppendHex(std::string& text, const char* prefix, uint32_t value, int digits) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, "%s%0*x", prefix, digits, value);
  text += buffer;
}

class Printer {
 public:
  Printer(Runtime& runtime, std::string& text) : runtime_(runtime), text_(text) {}

  void AppendRepr(const Value& value) {
    const Runtime::Level level(runtime_);
    runtime_.Step();
    // A namespace can hold itself; so the length is looked at while the text grows.
    runtime_.CheckText(text_.size());
    switch (value.kind()) {
      case Kind::kMissing:
      case Kind::kUndefined:
        text_ += "Undefined";
        return;
      case Kind::kNone:
        text_ += "None";
        return;
      case Kind::kBool:
        text_ += value.bool_value() ? "True" : "False";
        return;
      case Kind::kInt:
        text_ += std::to_string(value.integer());
        return;
      case Kind::kFloat:
        text_ += FloatRepr(value.number());
        return;
      case Kind::kString:
        runtime_.StepBytes(value.text().size());
        text_ += value.string().safe ? Concat("Markup(", StringRepr(value.text()), ")")
                                     : StringRepr(value.text());
        return;
      case Kind::kList:
        AppendItems("[", value.list().items, "]");
        return;
      case Kind::kTuple:
        AppendItems("(", value.list().items, value.list().items.size() == 1 ? ",)" : ")");
        return;
      case Kind::kDict:
        AppendDict(value.dict());
        return;
      case Kind::kDictView:
        text_ += TypeName(value);
        AppendItems("([", ToVector(runtime_, value), "])");
        return;
      case Kind::kRange:
        text_ += Concat("range(", value.range().start, ", ", value.range().stop);
        if (value.range().step != 1) text_ += Concat(", ", value.range().step);
        text_ += ')';
        return;
      case Kind::kNamespace:
        AppendNamespace(value.name_space());
        return;
      case Kind::kLoop:
        text_ += value.loop().Describe(runtime_);
        return;
      case Kind::kCallable:
        text_ += Concat("<", value.callable().Describe(), ">");
        return;
      case Kind::kIterator:
      case Kind::kCycler:
        text_ += Concat("<", TypeName(value), " object>");
        return;
    }
  }

 private:
  void AppendItems(std::string_view open, const std::vector<Value>& items, std::string_view close) {
    text_ += open;
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) text_ += ", ";
      AppendRepr(items[i]);
    }
    text_ += close;
  }

  void AppendDict(const DictObject& dict) {
    text_ += '{';
    for (size_t i = 0; i < dict.items.size(); ++i) {
      if (i > 0) text_ += ", ";
      AppendRepr(dict.items[i].first);
      text_ += ": ";
      AppendRepr(dict.items[i].second);
    }
    text_ += '}';
  }

  void AppendNamespace(const NamespaceObject& name_space) {
    text_ += "<Namespace {";
    for (size_t i = 0; i < name_space.attributes.size(); ++i) {
      if (i > 0) text_ += ", ";
      text_ += StringRepr(name_space.attributes[i].first);
      text_ += ": ";
      AppendRepr(name_space.attributes[i].second);
    }
    text_ += "}>";
  }

  Runtime& runtime_;
  std::string& text_;
};

class JsonPrinter {
 public:
  JsonPrinter(Runtime& runtime, const JsonStyle& style, std::string& text)
      : runtime_(runtime), style_(style), text_(text) {}

  void Append(const Value& value) {
    const Runtime::Level level(runtime_);
    runtime_.Step();
    switch (value.kind()) {
      case Kind::kNone:
        text_ += "null";
        return;
      case Kind::kBool:
        text_ += value.bool_value() ? "true" : "false";
        return;
      case Kind::kInt:
        text_ += std::to_string(value.integer());
        return;
      case Kind::kFloat:
        text_ += JsonFloat(value.number());
        return;
      case Kind::kString:
        AppendQuoted(value.text());
        return;
      case Kind::kList:
      case Kind::kTuple:
        AppendArray(value.list().items);
        return;
      case Kind::kDict:
        AppendObject(value.dict());
        return;
      default:
        runtime_.Fail("tojson: a value of type ", TypeName(value), " has no JSON form.");
    }
  }

 private:
  static std::string JsonFloat(double number) {
    if (std::isnan(number)) return "NaN";
    if (std::isinf(number)) return number > 0 ? "Infinity" : "-Infinity";
    return FloatRepr(number);
  }

  void BreakLine() {
    if (!style_.indent) return;
    text_ += '\n';
    runtime_.CheckText(text_.size() + style_.indent->size() * depth_);
    for (size_t i = 0; i < depth_; ++i) text_ += *style_.indent;
  }

  // The items of an array or object between brackets; `append(i)` writes one.
  template <class AppendItem>
  void AppendBracketed(char open, char close, size_t count, AppendItem append) {
    text_ += open;
    if (count > 0) {
      ++depth_;
      for (size_t i = 0; i < count; ++i) {
        if (i > 0) text_ += style_.item_separator;
        BreakLine();
        append(i);
      }
      --depth_;
      BreakLine();
    }
    text_ += close;
  }

  void AppendArray(const std::vector<Value>& items) {
    AppendBracketed('[', ']', items.size(), [&](size_t i) { Append(items[i]); });
  }

  void AppendObject(const DictObject& dict) {
    std::vector<const std::pair<Value, Value>*> items;
    for (const auto& item : dict.items) items.push_back(&item);
    if (style_.sort_keys) {
      std::stable_sort(items.begin(), items.end(), [&](const auto* a, const auto* b) {
        return IsLess(runtime_, a->first, b->first);
      });
    }
    AppendBracketed('{', '}', items.size(), [&](size_t i) {
      AppendQuoted(Key(items[i]->first));
      text_ += style_.key_separator;
      Append(items[i]->second);
    });
  }

  std::string Key(const Value& key) const {
    switch (key.kind()) {
      case Kind::kString:
        return key.text();
      case Kind::kNone:
        return "null";
      case Kind::kBool:
        return key.bool_value() ? "true" : "false";
      case Kind::kInt:
        return std::to_string(key.integer());
      case Kind::kFloat:
        return JsonFloat(key.number());
      default:
        runtime_.Fail("tojson: a value of type ", TypeName(key), " cannot be a key in JSON.");
    }
  }

  void AppendQuoted(std::string_view value) {
    runtime_.StepBytes(value.size());
    runtime_.CheckText(text_.size() + value.size());
    text_ += '"';
    for (size_t position = 0; position < value.size();) {
      const size_t begin = position;
      const char32_t c = DecodeUtf8(value, position);
      constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
      constexpr std::string_view kLetters = "\"\\nrtfb";
      const size_t escape = c < 0x80 ? kEscaped.find(static_cast<char>(c)) : std::string::npos;
      if (escape != std::string_view::npos) {
        text_ += '\\';
        text_ += kLetters[escape];
      } else if (c < 0x20 || (style_.ensure_ascii && c >= 0x7F && c < 0x10000)) {
        AppendHex(text_, "\\u", c, 4);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        AppendHex(text_, "\\u", 0xD800 + ((c - 0x10000) >> 10), 4);
        AppendHex(text_, "\\u", 0xDC00 + ((c - 0x10000) & 0x3FF), 4);
      } else {
        text_ += value.substr(begin, position - begin);
      }
    }
    text_ += '"';
  }

  Runtime& runtime_;
  const JsonStyle& style_;
  std::string& text_;
  size_t depth_ = 0;
};

}  // namespace

std::string FloatRepr(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number > 0 ? "inf" : "-inf";
  char buffer[40];
  const auto scientific =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::scientific);
  const std::string text(buffer, scientific.ptr);
  const size_t e = text.find('e');
  const int exponent = std::atoi(text.c_str() + e + 1);
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed =
      std::to_chars(buffer, buffer + sizeof buffer, number, std::chars_format::fixed);
  std::string digits(buffer, fixed.ptr);
  if (digits.find('.') == std::string::npos) digits += ".0";
  return digits;
}

std::string StringRepr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string repr(1, quote);
  repr.reserve(text.size() + 2);
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    const char32_t c = DecodeUtf8(text, position);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      repr += '\\';
      repr += static_cast<char>(c);
    } else if (c == '\n') {
      repr += "\\n";
    } else if (c == '\r') {
      repr += "\\r";
    } else if (c == '\t') {
      repr += "\\t";
    } else if (c < 0x20 || c == 0x7F || (c >= 0x80 && c < 0x100 && !IsPrintable(c))) {
      AppendHex(repr, "\\x", c, 2);
    } else if (c < 0x7F || IsPrintable(c)) {
      repr += text.substr(begin, position - begin);
    } else if (c < 0x10000) {
      AppendHex(repr, "\\u", c, 4);
    } else {
      AppendHex(repr, "\\U", c, 8);
    }
  }
  return repr + quote;
}

void AppendString(Runtime& runtime, const Value& value, std::string& text) {
  if (value.Is(Kind::kString)) {
    runtime.CheckText(text.size() + value.text().size());
    runtime.StepBytes(value.text().size());
    text += value.text();
  } else if (!value.IsUndefined()) {
    Printer(runtime, text).AppendRepr(value);
  }
}

std::string ToString(Runtime& runtime, const Value& value) {
  std::string text;
  AppendString(runtime, value, text);
  return text;
}

std::string Repr(Runtime& runtime, const Value& value) {
  std::string text;
  Printer(runtime, text).AppendRepr(value);
  return text;
}

std::string ToJson(Runtime& runtime, const Value& value, const JsonStyle& style) {
  std::string text;
  JsonPrinter(runtime, style, text).Append(value);
  return text;
}

}  // namespace adder::text::jinja
