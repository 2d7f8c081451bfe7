#include "text/jinja/python_text.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

#include "text/unicode.h"
#include "text/utf8.h"

namespace adder::text::jinja {
namespace {

struct SpecialCasing {
  char32_t character;
  std::string_view upper;
  std::string_view title;
};

constexpr SpecialCasing kSpecialCasing[] = {
#include "text/jinja/special_casing.inc"
};

struct Range {
  char32_t first;
  char32_t last;
};

// From the Unicode character database, version 14 (https://www.unicode.org/Public/14.0.0/ucd/).
// The property Other_Uppercase: Roman numerals, letters in circles and squares.
constexpr Range kOtherUppercase[] = {
    {0x2160, 0x216F}, {0x24B6, 0x24CF}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
// The property Other_Lowercase: ordinal indicators, modifier letters, small Roman numerals.
constexpr Range kOtherLowercase[] = {
    {0xAA, 0xAA},       {0xBA, 0xBA},       {0x2B0, 0x2B8},     {0x2C0, 0x2C1},    {0x2E0, 0x2E4},
    {0x345, 0x345},     {0x37A, 0x37A},     {0x1D2C, 0x1D6A},   {0x1D78, 0x1D78},  {0x1D9B, 0x1DBF},
    {0x2071, 0x2071},   {0x207F, 0x207F},   {0x2090, 0x209C},   {0x2170, 0x217F},  {0x24D0, 0x24E9},
    {0x2C7C, 0x2C7D},   {0xA69C, 0xA69D},   {0xA770, 0xA770},   {0xA7F8, 0xA7F9},  {0xAB5C, 0xAB5F},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107B0}, {0x107B2, 0x107BA}};
// Numeric_Type=Digit: superscripts, subscripts, digits in circles and brackets.
constexpr Range kOtherDigits[] = {
    {0xB2, 0xB3},       {0xB9, 0xB9},       {0x1369, 0x1371},   {0x19DA, 0x19DA},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247C},   {0x2488, 0x2490},   {0x24EA, 0x24EA},   {0x24F5, 0x24FD},
    {0x24FF, 0x24FF},   {0x2776, 0x277E},   {0x2780, 0x2788},   {0x278A, 0x2792},
    {0x10A40, 0x10A43}, {0x10E60, 0x10E68}, {0x11052, 0x1105A}, {0x1F100, 0x1F10A}};
// Ideographs with the property kPrimaryNumeric, kAccountingNumeric or kOtherNumeric.
constexpr Range kIdeographicNumbers[] = {
    {0x3405, 0x3405},   {0x3483, 0x3483},   {0x382A, 0x382A},   {0x3B4D, 0x3B4D},
    {0x4E00, 0x4E00},   {0x4E03, 0x4E03},   {0x4E07, 0x4E07},   {0x4E09, 0x4E09},
    {0x4E5D, 0x4E5D},   {0x4E8C, 0x4E8C},   {0x4E94, 0x4E94},   {0x4E96, 0x4E96},
    {0x4EBF, 0x4EC0},   {0x4EDF, 0x4EDF},   {0x4EE8, 0x4EE8},   {0x4F0D, 0x4F0D},
    {0x4F70, 0x4F70},   {0x5104, 0x5104},   {0x5146, 0x5146},   {0x5169, 0x5169},
    {0x516B, 0x516B},   {0x516D, 0x516D},   {0x5341, 0x5341},   {0x5343, 0x5345},
    {0x534C, 0x534C},   {0x53C1, 0x53C4},   {0x56DB, 0x56DB},   {0x58F1, 0x58F1},
    {0x58F9, 0x58F9},   {0x5E7A, 0x5E7A},   {0x5EFE, 0x5EFF},   {0x5F0C, 0x5F0E},
    {0x5F10, 0x5F10},   {0x62FE, 0x62FE},   {0x634C, 0x634C},   {0x67D2, 0x67D2},
    {0x6F06, 0x6F06},   {0x7396, 0x7396},   {0x767E, 0x767E},   {0x8086, 0x8086},
    {0x842C, 0x842C},   {0x8CAE, 0x8CAE},   {0x8CB3, 0x8CB3},   {0x8D30, 0x8D30},
    {0x9621, 0x9621},   {0x9646, 0x9646},   {0x964C, 0x964C},   {0x9678, 0x9678},
    {0x96F6, 0x96F6},   {0xF96B, 0xF96B},   {0xF973, 0xF973},   {0xF978, 0xF978},
    {0xF9B2, 0xF9B2},   {0xF9D1, 0xF9D1},   {0xF9D3, 0xF9D3},   {0xF9FD, 0xF9FD},
    {0x20001, 0x20001}, {0x20064, 0x20064}, {0x200E2, 0x200E2}, {0x20121, 0x20121},
    {0x2092A, 0x2092A}, {0x20983, 0x20983}, {0x2098C, 0x2098C}, {0x2099C, 0x2099C},
    {0x20AEA, 0x20AEA}, {0x20AFD, 0x20AFD}, {0x20B19, 0x20B19}, {0x22390, 0x22390},
    {0x22998, 0x22998}, {0x23B1B, 0x23B1B}, {0x2626D, 0x2626D}, {0x2F890, 0x2F890}};

template <size_t kCount>
bool IsIn(const Range (&ranges)[kCount], char32_t c) {
  const auto* found =
      std::lower_bound(std::begin(ranges), std::end(ranges), c,
                       [](const Range& range, char32_t x) { return range.last < x; });
  return found != std::end(ranges) && found->first <= c;
}

constexpr char32_t kCapitalSigma = 0x3A3;

utf8proc_category_t Category(char32_t c) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

const SpecialCasing* FindSpecialCasing(char32_t c) {
  const auto* found =
      std::lower_bound(std::begin(kSpecialCasing), std::end(kSpecialCasing), c,
                       [](const SpecialCasing& entry, char32_t x) { return entry.character < x; });
  return found != std::end(kSpecialCasing) && found->character == c ? found : nullptr;
}

void AppendUpper(char32_t c, std::string& text) {
  if (const SpecialCasing* special = FindSpecialCasing(c)) {
    text += special->upper;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))), text);
  }
}

void AppendTitle(char32_t c, std::string& text) {
  if (const SpecialCasing* special = FindSpecialCasing(c)) {
    text += special->title;
  } else {
    AppendUtf8(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))), text);
  }
}

bool IsCased(char32_t c) { return IsUpper(c) || IsLower(c) || IsTitle(c); }

// The property Case_Ignorable: marks, modifiers, format characters and some punctuation.
bool IsCaseIgnorable(char32_t c) {
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_SK:
      return true;
    default:
      return c == '\'' || c == '.' || c == ':' || c == 0xB7 || c == 0x387 || c == 0x2018 ||
             c == 0x2019 || c == 0x2024 || c == 0x2027;
  }
}

std::vector<char32_t> Decode(std::string_view text) {
  std::vector<char32_t> points;
  points.reserve(text.size());
  for (size_t position = 0; position < text.size();) points.push_back(DecodeUtf8(text, position));
  return points;
}

// Whether each character, if it is a capital sigma, is written as the final form: a cased character
// stands before it and none behind it, case-ignorable ones aside. One pass each way.
std::vector<bool> FinalSigmas(const std::vector<char32_t>& points) {
  std::vector<bool> cased_before(points.size());
  bool cased = false;
  for (size_t i = 0; i < points.size(); ++i) {
    cased_before[i] = cased;
    if (!IsCaseIgnorable(points[i])) cased = IsCased(points[i]);
  }
  std::vector<bool> final(points.size());
  cased = false;
  for (size_t i = points.size(); i-- > 0;) {
    final[i] = cased_before[i] && !cased;
    if (!IsCaseIgnorable(points[i])) cased = IsCased(points[i]);
  }
  return final;
}

bool IsAscii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<signed char>(c) >= 0; });
}

// Lower-cases the characters for which `is_lowered` holds and hands the others to `append`.
template <class IsLowered, class Append>
std::string ChangeCase(std::string_view text, IsLowered is_lowered, Append append) {
  const std::vector<char32_t> points = Decode(text);
  const bool has_sigma = std::find(points.begin(), points.end(), kCapitalSigma) != points.end();
  const std::vector<bool> final_sigmas = has_sigma ? FinalSigmas(points) : std::vector<bool>();
  std::string changed;
  changed.reserve(text.size());
  for (size_t i = 0; i < points.size(); ++i) {
    if (!is_lowered(i, points[i])) {
      append(points[i], changed);
    } else if (points[i] == kCapitalSigma) {
      AppendUtf8(final_sigmas[i] ? 0x3C2 : 0x3C3, changed);
    } else {
      AppendLowercase(points[i], changed);
    }
  }
  return changed;
}

}  // namespace

size_t CountCodePoints(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

size_t ByteOffset(std::string_view text, size_t index) {
  size_t position = 0;
  while (index > 0 && position < text.size()) {
    ++position;
    while (position < text.size() && (static_cast<uint8_t>(text[position]) & 0xC0) == 0x80) {
      ++position;
    }
    --index;
  }
  return position;
}

bool IsPythonSpace(char32_t c) { return (c >= 0x1C && c <= 0x1F) || IsWhitespace(c); }

bool IsPrintable(char32_t c) {
  if (c == ' ') return true;
  switch (Category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZS:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
      return false;
    default:
      return true;
  }
}

bool IsUpper(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LU || IsIn(kOtherUppercase, c); }

bool IsLower(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LL || IsIn(kOtherLowercase, c); }

bool IsTitle(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_LT; }

bool IsAlphabetic(char32_t c) {
  const utf8proc_category_t category = Category(c);
  return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool IsDecimal(char32_t c) { return Category(c) == UTF8PROC_CATEGORY_ND; }

bool IsDigit(char32_t c) { return IsDecimal(c) || IsIn(kOtherDigits, c); }

bool IsNumericCharacter(char32_t c) {
  return IsDigit(c) || IsNumeric(c) || IsIn(kIdeographicNumbers, c);
}

int DecimalValue(char32_t c) {
  if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
  if (c < 0x80 || !IsDecimal(c)) return -1;
  // The digits of a script are ten neighbours; mathematical ones come in five such groups.
  if (c >= 0x1D7CE && c <= 0x1D7FF) return static_cast<int>((c - 0x1D7CE) % 10);
  int value = 0;
  while (value < 9 && IsDecimal(c - static_cast<char32_t>(value) - 1)) ++value;
  return value;
}

bool IsIdentifierStart(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  return IsAlphabetic(c) || Category(c) == UTF8PROC_CATEGORY_NL;
}

bool IsIdentifierPart(char32_t c) {
  if (c < 0x80) return IsIdentifierStart(c) || (c >= '0' && c <= '9');
  const utf8proc_category_t category = Category(c);
  return IsIdentifierStart(c) || category == UTF8PROC_CATEGORY_MN ||
         category == UTF8PROC_CATEGORY_MC || category == UTF8PROC_CATEGORY_ND ||
         category == UTF8PROC_CATEGORY_PC || c == 0xB7;
}

// memmem works in linear time (two-way search), which the members of std::string_view do not.
size_t FindFirst(std::string_view text, std::string_view wanted, size_t position) {
  if (position > text.size()) return std::string_view::npos;
  const void* found =
      memmem(text.data() + position, text.size() - position, wanted.data(), wanted.size());
  if (found == nullptr) return std::string_view::npos;
  return static_cast<size_t>(static_cast<const char*>(found) - text.data());
}

// Searches backwards in growing pieces from the end, so that the time depends on where it is found.
size_t FindLast(std::string_view text, std::string_view wanted) {
  constexpr size_t kSmallest = 64;
  const std::string reversed_wanted(wanted.rbegin(), wanted.rend());
  for (size_t size = std::max(2 * wanted.size(), kSmallest);; size *= 2) {
    size = std::min(size, text.size());
    const std::string reversed(text.rbegin(), text.rbegin() + static_cast<std::ptrdiff_t>(size));
    const size_t found = FindFirst(reversed, reversed_wanted);
    if (found != std::string_view::npos) return text.size() - found - wanted.size();
    if (size == text.size()) return std::string_view::npos;
  }
}

std::string Upper(std::string_view text) {
  std::string upper;
  upper.reserve(text.size());
  for (size_t position = 0; position < text.size();) AppendUpper(DecodeUtf8(text, position), upper);
  return upper;
}

std::string Lower(std::string_view text) {
  if (IsAscii(text)) {
    std::string lower(text);
    for (char& c : lower) {
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
    }
    return lower;
  }
  return ChangeCase(
      text, [](size_t, char32_t) { return true; }, AppendTitle);
}

std::string Title(std::string_view text) {
  bool in_word = false;
  return ChangeCase(
      text,
      [&in_word](size_t, char32_t c) {
        const bool lowered = in_word;
        in_word = IsCased(c);
        return lowered;
      },
      AppendTitle);
}

std::string Capitalize(std::string_view text) {
  return ChangeCase(
      text, [](size_t i, char32_t) { return i > 0; }, AppendTitle);
}

std::string SwapCase(std::string_view text) {
  return ChangeCase(
      text, [](size_t, char32_t c) { return IsUpper(c); },
      [](char32_t c, std::string& swapped) {
        if (IsLower(c)) {
          AppendUpper(c, swapped);
        } else {
          AppendUtf8(c, swapped);
        }
      });
}

std::string CaseFold(std::string_view text) {
  std::string folded;
  folded.reserve(text.size());
  for (size_t position = 0; position < text.size();) {
    const char32_t c = DecodeUtf8(text, position);
    if (c < 0x80) {
      folded += c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : static_cast<char>(c);
      continue;
    }
    // No case folding is longer than 4 characters.
    utf8proc_int32_t points[8];
    const utf8proc_ssize_t count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c), points,
                                                           8, UTF8PROC_CASEFOLD, nullptr);
    for (utf8proc_ssize_t i = 0; i < count && i < 8; ++i) {
      AppendUtf8(static_cast<char32_t>(points[i]), folded);
    }
  }
  return folded;
}

namespace {

bool IsStripped(std::string_view character, const std::string_view* characters) {
  if (characters != nullptr) return characters->find(character) != std::string_view::npos;
  size_t position = 0;
  return IsPythonSpace(DecodeUtf8(character, position));
}

}  // namespace

std::string_view StripLeft(std::string_view text, const std::string_view* characters) {
  while (!text.empty()) {
    const size_t length = ByteOffset(text, 1);
    if (!IsStripped(text.substr(0, length), characters)) break;
    text.remove_prefix(length);
  }
  return text;
}

std::string_view StripRight(std::string_view text, const std::string_view* characters) {
  while (!text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
    if (!IsStripped(text.substr(begin), characters)) break;
    text = text.substr(0, begin);
  }
  return text;
}

bool IsLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::string EscapeHtml(std::string_view text) {
  std::string escaped;
  escaped.reserve(text.size());
  for (char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&#34;";
        break;
      case '\'':
        escaped += "&#39;";
        break;
      default:
        escaped += c;
    }
  }
  return escaped;
}

}  // namespace adder::text::jinja
