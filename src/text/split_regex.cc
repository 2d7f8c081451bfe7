#include "text/split_regex.h"

#include <cstdint>

#include "text/regex_classes.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

// One alternative of a pattern that matches nothing here.
constexpr size_t kNoMatch = std::string_view::npos;

struct Character {
  uint8_t classes;
  size_t end;
};

uint8_t ByteClasses(std::string_view text, size_t position) {
  return kByteClasses[static_cast<uint8_t>(text[position])];
}

Character CharacterAt(std::string_view text, size_t position) {
  const uint8_t classes = ByteClasses(text, position);
  if ((classes & kNotAscii) == 0) return {classes, position + 1};
  const char32_t c = DecodeUtf8(text, position);
  return {character_class_table.Of(c), position};
}

// Whether the character at `position`, which may be the end of the text, has one of the classes.
bool IsAt(std::string_view text, size_t position, uint8_t classes) {
  return position < text.size() && (CharacterAt(text, position).classes & classes) != 0;
}

// The end of the run of characters from `position` that have one of the classes, or none of them.
template <bool kHave>
size_t RunEnd(std::string_view text, size_t position, uint8_t classes) {
  for (; position < text.size();) {
    const uint8_t ascii = ByteClasses(text, position);
    if ((ascii & kNotAscii) == 0) {
      if (((ascii & classes) != 0) != kHave) break;
      ++position;
      continue;
    }
    const Character c = CharacterAt(text, position);
    if (((c.classes & classes) != 0) != kHave) break;
    position = c.end;
  }
  return position;
}

// 's|'t|'re|'ve|'m|'ll|'d at an apostrophe: its end, or `position`.
template <bool kIgnoreCase>
size_t ContractionEnd(std::string_view text, size_t position) {
  if (position >= text.size() || text[position] != '\'') return position;
  const auto letter = [&](size_t i) {
    if (position + i >= text.size()) return '\0';
    // This bit tells the cases of ASCII letters apart, and makes no letter of anything else.
    return static_cast<char>(text[position + i] | (kIgnoreCase ? 0x20 : 0));
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return position + 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? position + 3 : position;
    case 'l':
      return letter(2) == 'l' ? position + 3 : position;
    default:
      // The long s is an s to a search that ignores case.
      return kIgnoreCase && text.substr(position + 1).starts_with("\xC5\xBF") ? position + 3
                                                                              : position;
  }
}

// \p{N}{1,max} at a number.
size_t NumberEnd(std::string_view text, size_t position, int max) {
  for (int i = 0; i < max && IsAt(text, position, kNumber); ++i) {
    position = CharacterAt(text, position).end;
  }
  return position;
}

// \s*[\r\n]+|\s+(?!\S)|\s+ at whitespace, or without the first alternative.
template <bool kLines>
size_t WhitespaceEnd(std::string_view text, size_t begin) {
  size_t last = begin;  // where the last character of the run begins
  size_t lines_end = begin;
  size_t position = begin;
  while (position < text.size()) {
    const Character c = CharacterAt(text, position);
    if ((c.classes & kWhitespace) == 0) break;
    last = position;
    position = c.end;
    if ((c.classes & kNewline) != 0) lines_end = position;
  }
  if (kLines && lines_end > begin) return lines_end;
  // The last whitespace belongs to the word behind it, unless nothing would be left.
  return position == text.size() || last == begin ? position : last;
}

//  ?[^...]+ and the line breaks behind, where [^...] leaves out `classes` and whitespace.
size_t SymbolsEnd(std::string_view text, size_t begin, uint8_t classes) {
  const size_t start = text[begin] == ' ' ? begin + 1 : begin;
  const size_t end = RunEnd<false>(text, start, classes | kWhitespace);
  return end == start ? kNoMatch : end;
}

// kGpt2Pattern.
size_t Gpt2WordEnd(std::string_view text, size_t begin) {
  if (const size_t end = ContractionEnd<false>(text, begin); end > begin) return end;
  const size_t start = text[begin] == ' ' && begin + 1 < text.size() ? begin + 1 : begin;
  const Character first = CharacterAt(text, start);
  if ((first.classes & kLetter) != 0) return RunEnd<true>(text, first.end, kLetter);
  if ((first.classes & kNumber) != 0) return RunEnd<true>(text, first.end, kNumber);
  if ((first.classes & kWhitespace) != 0) return WhitespaceEnd<false>(text, begin);
  return RunEnd<false>(text, first.end, kLetter | kNumber | kWhitespace);
}

// (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
// \s*[\r\n]+|\s+(?!\S)|\s+ with kMaxDigits in the place of 3, and with kMark in kWord where marks
// count as letters, but not in the character before a word.
template <uint8_t kWord, int kMaxDigits>
size_t Cl100kWordEnd(std::string_view text, size_t begin) {
  if (const size_t end = ContractionEnd<true>(text, begin); end > begin) return end;
  const Character first = CharacterAt(text, begin);
  if ((first.classes & kLetter) != 0) return RunEnd<true>(text, first.end, kWord);
  if ((first.classes & kNumber) != 0) return NumberEnd(text, begin, kMaxDigits);
  if ((first.classes & kNewline) == 0) {
    if (IsAt(text, first.end, kWord)) return RunEnd<true>(text, first.end, kWord);
    // A mark without a letter is a word by itself.
    if ((first.classes & kWord) != 0) return first.end;
  }
  const size_t end = SymbolsEnd(text, begin, kWord | kNumber);
  if (end != kNoMatch) return RunEnd<true>(text, end, kNewline);
  return WhitespaceEnd<true>(text, begin);
}

// The ends of [upper]*[lower]+ and [upper]+[lower]* at `begin`. The second only where the first is
// kNoMatch, for it is of no use otherwise.
struct CasedWord {
  size_t lower_end;
  size_t upper_end;
};

CasedWord CasedWordAt(std::string_view text, size_t begin) {
  size_t lower_end = kNoMatch;  // behind the last character of both sides
  size_t position = begin;
  while (position < text.size()) {
    const Character c = CharacterAt(text, position);
    if ((c.classes & kUpperSide) == 0) break;
    position = c.end;
    if ((c.classes & kLowerSide) != 0) lower_end = position;
  }
  if (IsAt(text, position, kLowerSide)) {
    return {RunEnd<true>(text, position, kLowerSide), kNoMatch};
  }
  return {lower_end, lower_end == kNoMatch && position > begin ? position : kNoMatch};
}

// [^\r\n\p{L}\p{N}]?[upper]*[lower]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|
// [^\r\n\p{L}\p{N}]?[upper]+[lower]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}|
//  ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ where [upper] is kUpperSide and [lower]
// kLowerSide.
size_t O200kWordEnd(std::string_view text, size_t begin) {
  const Character first = CharacterAt(text, begin);
  if ((first.classes & kNumber) != 0) return NumberEnd(text, begin, 3);
  CasedWord behind = {kNoMatch, kNoMatch};
  if ((first.classes & (kLetter | kNewline)) == 0) behind = CasedWordAt(text, first.end);
  CasedWord here = {kNoMatch, kNoMatch};
  // Marks can be either the character before a word or its first.
  if ((first.classes & (kLetter | kMark)) != 0) here = CasedWordAt(text, begin);
  for (size_t end : {behind.lower_end, here.lower_end, behind.upper_end, here.upper_end}) {
    if (end != kNoMatch) return ContractionEnd<true>(text, end);
  }
  size_t end = SymbolsEnd(text, begin, kLetter | kNumber);
  if (end == kNoMatch) return WhitespaceEnd<true>(text, begin);
  while (end < text.size() && (text[end] == '\r' || text[end] == '\n' || text[end] == '/')) ++end;
  return end;
}

}  // namespace

std::span<const WordPattern> KnownWordPatterns() {
  static constexpr WordPattern kKnown[] = {
      {kGpt2Pattern, Gpt2WordEnd},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
       R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       Cl100kWordEnd<kLetter, 3>},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
       R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       Cl100kWordEnd<kLetter, 1>},
      {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|)"
       R"( ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       Cl100kWordEnd<kLetter | kMark, 1>},
      {R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
       R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
       R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
       R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
       O200kWordEnd},
  };
  return kKnown;
}

WordMatcher FindWordMatcher(std::string_view pattern) {
  for (const WordPattern& known : KnownWordPatterns()) {
    if (known.pattern == pattern) return known.matcher;
  }
  return nullptr;
}

}  // namespace adder::text
