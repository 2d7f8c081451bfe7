// The methods of Python's str. All indices count code points.
#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "text/jinja/arguments.h"
#include "text/jinja/format.h"
#include "text/jinja/iteration.h"
#include "text/jinja/methods.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace adder::text::jinja {
namespace {

constexpr auto kByPosition = ArgumentReader::Passing::kByPosition;

bool IsSafe(const Value& self) { return self.string().safe; }

Value Like(Runtime& runtime, const Value& self, std::string text) {
  return runtime.String(std::move(text), IsSafe(self));
}

// An argument that is put into a safe string gets escaped.
std::string Inserted(const Value& self, std::string text) {
  return IsSafe(self) ? EscapeHtml(text) : text;
}

// --- case

template <std::string (*kChange)(std::string_view)>
Value ChangeCase(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "a method that changes case", arguments, {});
  runtime.StepBytes(8 * self.text().size());
  return Like(runtime, self, kChange(self.text()));
}

// --- predicates

// Whether there are characters and all have the property.
bool AllOf(const Value& self, const std::function<bool(char32_t)>& property) {
  const std::string_view text = self.text();
  for (size_t position = 0; position < text.size();) {
    if (!property(DecodeUtf8(text, position))) return false;
  }
  return !text.empty();
}

bool IsTitleCased(const Value& self) {
  bool in_word = false;
  bool found = false;
  const std::string_view text = self.text();
  for (size_t position = 0; position < text.size();) {
    const char32_t c = DecodeUtf8(text, position);
    if (IsUpper(c) || IsTitle(c)) {
      if (in_word) return false;
      in_word = found = true;
    } else if (IsLower(c)) {
      if (!in_word) return false;
      found = true;
    } else {
      in_word = false;
    }
  }
  return found;
}

// No character of the other case, and one of this.
bool HasOnlyCase(const Value& self, bool (*wanted)(char32_t), bool (*other)(char32_t)) {
  bool found = false;
  const bool fine = AllOf(self, [&](char32_t c) {
    found = found || wanted(c);
    return !other(c) && !IsTitle(c);
  });
  return fine && found;
}

bool IsIdentifier(const Value& self) {
  bool first = true;
  return AllOf(self, [&first](char32_t c) {
    return std::exchange(first, false) ? IsIdentifierStart(c) : IsIdentifierPart(c);
  });
}

bool IsAlnum(const Value& self) {
  return AllOf(self, [](char32_t c) { return IsAlphabetic(c) || IsNumericCharacter(c); });
}
bool IsAlpha(const Value& self) { return AllOf(self, IsAlphabetic); }
bool IsAscii(const Value& self) { return self.string().ascii(); }
bool IsAllDecimal(const Value& self) { return AllOf(self, IsDecimal); }
bool IsAllDigits(const Value& self) { return AllOf(self, IsDigit); }
bool IsAllNumeric(const Value& self) { return AllOf(self, IsNumericCharacter); }
bool IsAllLower(const Value& self) { return HasOnlyCase(self, IsLower, IsUpper); }
bool IsAllUpper(const Value& self) { return HasOnlyCase(self, IsUpper, IsLower); }
bool IsAllPrintable(const Value& self) { return self.text().empty() || AllOf(self, IsPrintable); }
bool IsAllSpace(const Value& self) { return AllOf(self, IsPythonSpace); }

template <bool (*kTest)(const Value&)>
Value Predicate(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "a test of a string", arguments, {});
  runtime.StepBytes(8 * self.text().size());
  return Value::Bool(kTest(self));
}

// --- searching

// The part of a string between two optional indices, and where it begins.
struct Part {
  std::string_view text;
  size_t start = 0;   // in code points
  bool valid = true;  // false when it would begin behind the end
};

Part TakePart(Runtime& runtime, const Value& self, const ArgumentReader& reader, size_t first) {
  const auto length = static_cast<int64_t>(self.string().length);
  const auto bound = [length](int64_t index) {
    return index < 0 ? std::max<int64_t>(index + length, 0) : index;
  };
  const auto given = [&](size_t parameter, int64_t absent) {
    return reader.GetSome(parameter) == nullptr ? absent : bound(reader.Int(parameter));
  };
  const int64_t start = given(first, 0);
  const int64_t end = std::min(given(first + 1, length), length);
  if (start > length || end < start) return {{}, 0, false};
  const std::string_view text = self.text();
  runtime.StepBytes(text.size());
  if (self.string().ascii()) {
    return {text.substr(static_cast<size_t>(start), static_cast<size_t>(end - start)),
            static_cast<size_t>(start)};
  }
  const size_t begin = ByteOffset(text, static_cast<size_t>(start));
  const size_t size = ByteOffset(text.substr(begin), static_cast<size_t>(end - start));
  return {text.substr(begin, size), static_cast<size_t>(start)};
}

std::optional<int64_t> Search(Runtime& runtime, const Value& self, const Arguments& arguments,
                              bool from_right) {
  const ArgumentReader reader(runtime, "a search in a string", arguments, {"text", "start", "end"},
                              1, kByPosition);
  const std::string wanted = reader.Text(0);
  const Part part = TakePart(runtime, self, reader, 1);
  if (!part.valid) return std::nullopt;
  const size_t found = from_right ? FindLast(part.text, wanted) : FindFirst(part.text, wanted);
  if (found == std::string_view::npos) return std::nullopt;
  return static_cast<int64_t>(part.start + CountCodePoints(part.text.substr(0, found)));
}

template <bool kFromRight>
Value Find(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return Value::Int(Search(runtime, self, arguments, kFromRight).value_or(-1));
}

template <bool kFromRight>
Value Index(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const auto found = Search(runtime, self, arguments, kFromRight);
  if (!found) runtime.Fail("index: the text is not there.");
  return Value::Int(*found);
}

Value Count(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "count", arguments, {"text", "start", "end"}, 1,
                              kByPosition);
  const std::string wanted = reader.Text(0);
  const Part part = TakePart(runtime, self, reader, 1);
  if (!part.valid) return Value::Int(0);
  if (wanted.empty()) return Value::Int(static_cast<int64_t>(CountCodePoints(part.text)) + 1);
  int64_t count = 0;
  for (size_t at = FindFirst(part.text, wanted); at != std::string_view::npos;
       at = FindFirst(part.text, wanted, at + wanted.size())) {
    ++count;
  }
  return Value::Int(count);
}

template <bool kAtEnd>
Value HasAffix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, kAtEnd ? "endswith" : "startswith", arguments,
                              {"text", "start", "end"}, 1, kByPosition);
  const Part part = TakePart(runtime, self, reader, 1);
  const auto matches = [&](const Value& affix) {
    if (!affix.Is(Kind::kString)) {
      runtime.Fail(kAtEnd ? "endswith" : "startswith",
                   " takes a string or a tuple of strings, not ", TypeName(affix), ".");
    }
    return part.valid &&
           (kAtEnd ? part.text.ends_with(affix.text()) : part.text.starts_with(affix.text()));
  };
  const Value& affix = *reader.Get(0);
  if (!affix.Is(Kind::kTuple)) return Value::Bool(matches(affix));
  const auto& affixes = affix.list().items;
  return Value::Bool(std::any_of(affixes.begin(), affixes.end(), matches));
}

// --- stripping and cutting

template <bool kLeft, bool kRight>
Value Strip(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "strip", arguments, {"characters"}, 0, kByPosition);
  std::string characters;
  std::string_view view;
  const std::string_view* set = nullptr;
  if (reader.GetSome(0) != nullptr) {
    characters = reader.Text(0);
    view = characters;
    set = &view;
  }
  runtime.StepBytes(self.text().size() + characters.size());
  std::string_view text = self.text();
  if (kLeft) text = StripLeft(text, set);
  if (kRight) text = StripRight(text, set);
  // Nothing to do is frequent, and a string may be long.
  if (text.size() == self.text().size()) return self;
  return Like(runtime, self, std::string(text));
}

template <bool kAtEnd>
Value RemoveAffix(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, kAtEnd ? "removesuffix" : "removeprefix", arguments,
                              {"text"}, 1, kByPosition);
  const std::string affix = reader.Text(0);
  std::string_view text = self.text();
  if (kAtEnd && text.ends_with(affix)) text.remove_suffix(affix.size());
  if (!kAtEnd && text.starts_with(affix)) text.remove_prefix(affix.size());
  return Like(runtime, self, std::string(text));
}

template <bool kFromRight>
Value Partition(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "partition", arguments, {"separator"}, 1, kByPosition);
  const std::string separator = reader.Text(0);
  if (separator.empty()) runtime.Fail("partition: the separator is empty.");
  const std::string& text = self.text();
  const size_t at = kFromRight ? FindLast(text, separator) : FindFirst(text, separator);
  if (at == std::string::npos) {
    const Value empty = Like(runtime, self, "");
    return kFromRight ? runtime.Tuple({empty, empty, self}) : runtime.Tuple({self, empty, empty});
  }
  return runtime.Tuple({Like(runtime, self, text.substr(0, at)), Like(runtime, self, separator),
                        Like(runtime, self, text.substr(at + separator.size()))});
}

template <bool kFromRight>
Value Split(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "split", arguments, {"sep", "maxsplit"});
  const int64_t max_splits = reader.Int(1, -1);
  if (reader.GetSome(0) == nullptr) {
    return SplitText(runtime, self, nullptr, max_splits, kFromRight);
  }
  const std::string separator = reader.Text(0);
  if (separator.empty()) runtime.Fail("split: the separator is empty.");
  return SplitText(runtime, self, &separator, max_splits, kFromRight);
}

Value SplitLinesMethod(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "splitlines", arguments, {"keepends"});
  std::vector<Value> lines;
  for (std::string_view line : SplitLines(self.text(), reader.Bool(0))) {
    lines.push_back(Like(runtime, self, std::string(line)));
  }
  return runtime.List(std::move(lines));
}

// --- building

Value Replace(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "replace", arguments, {"old", "new", "count"}, 2,
                              kByPosition);
  return ReplaceText(runtime, self.text(), reader.Text(0), Inserted(self, reader.Text(1)),
                     reader.Int(2, -1), IsSafe(self));
}

Value Join(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "join", arguments, {"items"}, 1, kByPosition);
  const auto iterator = Iterate(runtime, *reader.Get(0));
  std::string joined;
  Value item;
  bool first = true;
  while (iterator->Next(runtime, item)) {
    if (!item.Is(Kind::kString)) {
      runtime.Fail("join: the items should be strings, one is ", TypeName(item), ".");
    }
    const bool escaped = IsSafe(self) && !IsSafe(item);
    if (!std::exchange(first, false)) joined += self.text();
    joined += escaped ? EscapeHtml(item.text()) : item.text();
    runtime.StepBytes(item.text().size() + self.text().size());
    runtime.CheckText(joined.size());
  }
  return Like(runtime, self, std::move(joined));
}

// A fill character of one code point, and by how much the text is too short.
struct Padding {
  std::string fill;
  size_t missing = 0;
};
Padding ReadPadding(Runtime& runtime, const Value& self, const Arguments& arguments,
                    int64_t& width) {
  const ArgumentReader reader(runtime, "a method that fills up a string", arguments,
                              {"width", "fillchar"}, 1, kByPosition);
  width = reader.Int(0);
  Padding padding;
  padding.fill = Inserted(self, reader.Text(1, " "));
  if (CountCodePoints(padding.fill) != 1) {
    runtime.Fail("The character to fill up with should be exactly one.");
  }
  const auto length = static_cast<int64_t>(self.string().length);
  padding.missing = width > length ? static_cast<size_t>(width - length) : 0;
  return padding;
}

Value Center(Runtime& runtime, const Value& self, const Arguments& arguments) {
  int64_t width = 0;
  const Padding padding = ReadPadding(runtime, self, arguments, width);
  // Which side gets the odd one depends on the width, in Python.
  const size_t left = padding.missing / 2 +
                      (padding.missing & static_cast<size_t>(std::max<int64_t>(width, 0)) & 1);
  return Like(runtime, self, Pad(runtime, self.text(), left, padding.missing - left, padding.fill));
}

template <bool kLeft>
Value Justify(Runtime& runtime, const Value& self, const Arguments& arguments) {
  int64_t width = 0;
  const Padding padding = ReadPadding(runtime, self, arguments, width);
  return Like(runtime, self,
              Pad(runtime, self.text(), kLeft ? 0 : padding.missing, kLeft ? padding.missing : 0,
                  padding.fill));
}

Value ZeroFill(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "zfill", arguments, {"width"}, 1, kByPosition);
  const int64_t missing = reader.Int(0) - static_cast<int64_t>(self.string().length);
  if (missing <= 0) return self;
  std::string_view digits = self.text();
  std::string sign;
  if (digits.starts_with('-') || digits.starts_with('+')) {
    sign = digits.substr(0, 1);
    digits.remove_prefix(1);
  }
  return Like(runtime, self, sign + Pad(runtime, digits, static_cast<size_t>(missing), 0, "0"));
}

Value ExpandTabs(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "expandtabs", arguments, {"tabsize"});
  const int64_t size = reader.Int(0, 8);
  std::string expanded;
  int64_t column = 0;
  const std::string_view text = self.text();
  for (size_t position = 0; position < text.size();) {
    const size_t begin = position;
    const char32_t c = DecodeUtf8(text, position);
    if (c == '\t') {
      if (size <= 0) continue;
      const int64_t spaces = size - column % size;
      runtime.CheckText(expanded.size() + static_cast<size_t>(spaces));
      runtime.StepBytes(static_cast<size_t>(spaces));
      expanded.append(static_cast<size_t>(spaces), ' ');
      column += spaces;
    } else {
      expanded += text.substr(begin, position - begin);
      column = c == '\n' || c == '\r' ? 0 : column + 1;
    }
  }
  return Like(runtime, self, std::move(expanded));
}

Value Format(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return FormatBraces(runtime, self, arguments);
}

Value FormatMap(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "format_map", arguments, {"mapping"}, 1, kByPosition);
  if (!reader.Get(0)->Is(Kind::kDict)) {
    runtime.Fail("format_map takes a dict, not ", TypeName(*reader.Get(0)), ".");
  }
  Arguments by_name;
  for (const auto& [key, value] : reader.Get(0)->dict().items) {
    if (key.Is(Kind::kString)) by_name.named.emplace_back(key.text(), value);
  }
  return FormatBraces(runtime, self, by_name);
}

struct NamedMethod {
  std::string_view name;
  MethodFunction function;
};

constexpr NamedMethod kMethods[] = {
    {"capitalize", ChangeCase<Capitalize>},
    {"casefold", ChangeCase<CaseFold>},
    {"center", Center},
    {"count", Count},
    {"endswith", HasAffix<true>},
    {"expandtabs", ExpandTabs},
    {"find", Find<false>},
    {"format", Format},
    {"format_map", FormatMap},
    {"index", Index<false>},
    {"isalnum", Predicate<IsAlnum>},
    {"isalpha", Predicate<IsAlpha>},
    {"isascii", Predicate<IsAscii>},
    {"isdecimal", Predicate<IsAllDecimal>},
    {"isdigit", Predicate<IsAllDigits>},
    {"isidentifier", Predicate<IsIdentifier>},
    {"islower", Predicate<IsAllLower>},
    {"isnumeric", Predicate<IsAllNumeric>},
    {"isprintable", Predicate<IsAllPrintable>},
    {"isspace", Predicate<IsAllSpace>},
    {"istitle", Predicate<IsTitleCased>},
    {"isupper", Predicate<IsAllUpper>},
    {"join", Join},
    {"ljust", Justify<true>},
    {"lower", ChangeCase<Lower>},
    {"lstrip", Strip<true, false>},
    {"partition", Partition<false>},
    {"removeprefix", RemoveAffix<false>},
    {"removesuffix", RemoveAffix<true>},
    {"replace", Replace},
    {"rfind", Find<true>},
    {"rindex", Index<true>},
    {"rjust", Justify<false>},
    {"rpartition", Partition<true>},
    {"rsplit", Split<true>},
    {"rstrip", Strip<false, true>},
    {"split", Split<false>},
    {"splitlines", SplitLinesMethod},
    {"startswith", HasAffix<false>},
    {"strip", Strip<true, true>},
    {"swapcase", ChangeCase<SwapCase>},
    {"title", ChangeCase<Title>},
    {"upper", ChangeCase<Upper>},
    {"zfill", ZeroFill},
};

// The pieces between runs of white space; the rest of the text after `max_splits` of them.
std::vector<std::string_view> SplitAtSpace(std::string_view text, int64_t max_splits,
                                           bool from_right) {
  std::vector<std::string_view> pieces;
  text = from_right ? StripRight(text) : StripLeft(text);
  while (!text.empty()) {
    if (max_splits >= 0 && static_cast<int64_t>(pieces.size()) == max_splits) {
      pieces.push_back(from_right ? StripRight(text) : text);
      break;
    }
    size_t begin = 0;
    size_t end = text.size();
    if (from_right) {
      // Backwards, a character at a time, to the last white space.
      begin = end;
      while (begin > 0) {
        size_t previous = begin - 1;
        while (previous > 0 && (static_cast<uint8_t>(text[previous]) & 0xC0) == 0x80) --previous;
        size_t position = previous;
        if (IsPythonSpace(DecodeUtf8(text, position))) break;
        begin = previous;
      }
    } else {
      for (size_t position = 0; position < text.size();) {
        const size_t at = position;
        if (IsPythonSpace(DecodeUtf8(text, position))) {
          end = at;
          break;
        }
      }
    }
    pieces.push_back(text.substr(begin, end - begin));
    text = from_right ? StripRight(text.substr(0, begin)) : StripLeft(text.substr(end));
  }
  return pieces;
}

std::vector<std::string_view> SplitAt(std::string_view text, std::string_view separator,
                                      int64_t max_splits, bool from_right) {
  std::vector<std::string_view> pieces;
  while (max_splits < 0 || static_cast<int64_t>(pieces.size()) < max_splits) {
    const size_t at = from_right ? FindLast(text, separator) : FindFirst(text, separator);
    if (at == std::string_view::npos) break;
    const size_t behind = at + separator.size();
    pieces.push_back(from_right ? text.substr(behind) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(behind);
  }
  pieces.push_back(text);
  return pieces;
}

}  // namespace

MethodFunction FindStringMethod(std::string_view name) {
  const auto* found = std::lower_bound(
      std::begin(kMethods), std::end(kMethods), name,
      [](const NamedMethod& method, std::string_view n) { return method.name < n; });
  return found != std::end(kMethods) && found->name == name ? found->function : nullptr;
}

Value SplitText(Runtime& runtime, const Value& text, const std::string* separator,
                int64_t max_splits, bool from_right) {
  runtime.StepBytes(text.text().size());
  std::vector<std::string_view> pieces =
      separator == nullptr ? SplitAtSpace(text.text(), max_splits, from_right)
                           : SplitAt(text.text(), *separator, max_splits, from_right);
  if (from_right) std::reverse(pieces.begin(), pieces.end());
  std::vector<Value> parts;
  parts.reserve(pieces.size());
  for (std::string_view piece : pieces) {
    runtime.Step();
    parts.push_back(Like(runtime, text, std::string(piece)));
  }
  return runtime.List(std::move(parts));
}

Value ReplaceText(Runtime& runtime, std::string_view text, std::string_view old,
                  std::string_view replacement, int64_t count, bool safe) {
  std::string replaced;
  size_t position = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    size_t at = old.empty() ? position : FindFirst(text, old, position);
    if (old.empty() && done > 0) {
      // Between all characters, and at both ends.
      if (position == text.size()) break;
      at = position + ByteOffset(text.substr(position), 1);
    }
    if (at == std::string_view::npos) break;
    runtime.StepBytes(64);
    replaced += text.substr(position, at - position);
    replaced += replacement;
    runtime.CheckText(replaced.size());
    position = at + old.size();
  }
  replaced += text.substr(position);
  return runtime.String(std::move(replaced), safe);
}

std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> lines;
  size_t start = 0;
  for (size_t position = 0; position < text.size();) {
    const size_t end = position;
    const char32_t c = DecodeUtf8(text, position);
    if (!IsLineBreak(c)) continue;
    if (c == '\r' && position < text.size() && text[position] == '\n') ++position;
    lines.push_back(text.substr(start, (keep_ends ? position : end) - start));
    start = position;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string Pad(Runtime& runtime, std::string_view text, size_t left, size_t right,
                std::string_view fill) {
  // Widths of 64 bits must not overflow the check.
  runtime.CheckText(std::max(left, right));
  runtime.CheckText(text.size() + (left + right) * fill.size());
  runtime.StepBytes((left + right) * fill.size());
  std::string padded;
  padded.reserve(text.size() + (left + right) * fill.size());
  for (size_t i = 0; i < left; ++i) padded += fill;
  padded += text;
  for (size_t i = 0; i < right; ++i) padded += fill;
  return padded;
}

}  // namespace adder::text::jinja
