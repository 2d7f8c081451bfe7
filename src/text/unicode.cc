#include "text/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/error.h"
#include "text/unicode_age.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

// Whether `text` holds only characters below `limit`, which the form leaves as they are.
bool AllBelow(std::string_view text, char32_t limit) {
  size_t position = 0;
  while (position < text.size()) {
    if (DecodeUtf8(text, position) >= limit) return false;
  }
  return true;
}

// Puts each run of combining marks in canonical order.
void SortMarks(std::vector<utf8proc_int32_t>& points) {
  const auto combining_class = [](utf8proc_int32_t point) {
    return utf8proc_get_property(point)->combining_class;
  };
  for (size_t begin = 0; begin < points.size(); ++begin) {
    if (combining_class(points[begin]) == 0) continue;
    size_t end = begin + 1;
    while (end < points.size() && combining_class(points[end]) != 0) ++end;
    std::stable_sort(points.begin() + static_cast<ptrdiff_t>(begin),
                     points.begin() + static_cast<ptrdiff_t>(end),
                     [&](utf8proc_int32_t a, utf8proc_int32_t b) {
                       return combining_class(a) < combining_class(b);
                     });
    begin = end - 1;
  }
}

// Appends a normal form of `text`, which holds no character with a new normal form.
void AppendNormalized(std::string_view text, NormalForm form, std::string& normalized) {
  const bool compose = form == NormalForm::kNfc || form == NormalForm::kNfkc;
  const bool compatibility = form == NormalForm::kNfkc || form == NormalForm::kNfkd;
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_DECOMPOSE |
                                                      (compatibility ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> points;
  points.reserve(text.size());
  size_t position = 0;
  while (position < text.size()) {
    const auto c = static_cast<utf8proc_int32_t>(DecodeUtf8(text, position));
    // The longest decomposition of one character is 18 characters.
    utf8proc_int32_t decomposed[32];
    const utf8proc_ssize_t count = utf8proc_decompose_char(c, decomposed, 32, options, nullptr);
    if (count < 0 || count > 32) Fail("The text has a character that cannot be decomposed.");
    points.insert(points.end(), decomposed, decomposed + count);
  }
  // utf8proc_decompose would do this in quadratic time.
  SortMarks(points);
  auto length = static_cast<utf8proc_ssize_t>(points.size());
  if (compose) {
    length = utf8proc_normalize_utf32(
        points.data(), length, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (length < 0) Fail("The text cannot be composed: ", utf8proc_errmsg(length), ".");
  }
  for (utf8proc_ssize_t i = 0; i < length; ++i) {
    AppendUtf8(static_cast<char32_t>(points[static_cast<size_t>(i)]), normalized);
  }
}

}  // namespace

bool IsWhitespace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

bool IsNumeric(char32_t c) {
  if (c < 0x80) return c >= '0' && c <= '9';
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

bool IsPunctuation(char32_t c) {
  if (c < 0x80) {
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
           (c >= '{' && c <= '~');
  }
  // These two have moved to other categories since the reference's tables.
  if (c == 0x166D || c == 0x111C9) return true;
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO &&
         !IsNewPunctuation(c);
}

bool IsMark(char32_t c) {
  // These two have become letters since the reference's tables.
  if (c == 0x1CF2 || c == 0x1CF3) return true;
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_MN && category <= UTF8PROC_CATEGORY_ME && !IsNewMark(c);
}

bool IsWord(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return (category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_NL) ||
         category == UTF8PROC_CATEGORY_PC || c == 0x200C || c == 0x200D ||
         // Symbols with the property Other_Alphabetic: letters in circles and squares.
         (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
         (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

void AppendLowercase(char32_t c, std::string& text) {
  // The one character whose lower-case form is two.
  if (c == 0x130) {
    text += "i\xCC\x87";
    return;
  }
  AppendUtf8(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c))), text);
}

std::string Normalize(std::string_view text, NormalForm form) {
  // Nothing below these bounds changes, and nothing below them composes with a neighbour.
  const char32_t unchanged_below = form == NormalForm::kNfc ? 0x300 : 0x80;
  if (AllBelow(text, unchanged_below)) return std::string(text);

  std::string normalized;
  normalized.reserve(text.size());
  size_t begin = 0;  // of the stretch between characters that nothing combines with
  for (size_t position = 0; position < text.size();) {
    const size_t character = position;
    if (!HasNewNormalForm(DecodeUtf8(text, position))) continue;
    AppendNormalized(text.substr(begin, character - begin), form, normalized);
    normalized += text.substr(character, position - character);
    begin = position;
  }
  AppendNormalized(text.substr(begin), form, normalized);
  return normalized;
}

size_t FirstGrapheme(std::string_view text) {
  size_t position = 0;
  char32_t previous = DecodeUtf8(text, position);
  utf8proc_int32_t state = 0;
  while (position < text.size()) {
    size_t next = position;
    const char32_t c = DecodeUtf8(text, next);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(previous),
                                         static_cast<utf8proc_int32_t>(c), &state)) {
      break;
    }
    previous = c;
    position = next;
  }
  return position;
}

}  // namespace adder::text
