// What Python's str does with characters and whole strings. All texts are valid UTF-8; a character
// is a Unicode code point.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace adder::text::jinja {

size_t CountCodePoints(std::string_view text);

// The byte at which code point `index` begins; the length of `text` when there are fewer.
size_t ByteOffset(std::string_view text, size_t index);

// str.isspace of one character. More than the property White_Space: Python counts the four
// separators U+001C to U+001F.
bool IsPythonSpace(char32_t c);
bool IsPrintable(char32_t c);  // what repr writes as it is
bool IsUpper(char32_t c);
bool IsLower(char32_t c);
bool IsTitle(char32_t c);
bool IsAlphabetic(char32_t c);        // str.isalpha
bool IsDecimal(char32_t c);           // str.isdecimal
bool IsDigit(char32_t c);             // str.isdigit: superscripts too
bool IsNumericCharacter(char32_t c);  // str.isnumeric: fractions, Roman and Chinese numbers too
// A decimal digit of any script as a number, or -1.
int DecimalValue(char32_t c);
// Whether a character may be in a Python identifier.
bool IsIdentifierStart(char32_t c);
bool IsIdentifierPart(char32_t c);

// Where `wanted` first (last) begins in `text`, or npos, like std::string_view's members, but in
// linear time whatever the texts are.
size_t FindFirst(std::string_view text, std::string_view wanted, size_t position = 0);
size_t FindLast(std::string_view text, std::string_view wanted);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Title(std::string_view text);       // str.title
std::string Capitalize(std::string_view text);  // str.capitalize
std::string SwapCase(std::string_view text);
std::string CaseFold(std::string_view text);

// `text` without leading (trailing) characters that are in `characters`; white space when
// `characters` is null.
std::string_view StripLeft(std::string_view text, const std::string_view* characters = nullptr);
std::string_view StripRight(std::string_view text, const std::string_view* characters = nullptr);

// Whether `c` ends a line for str.splitlines.
bool IsLineBreak(char32_t c);

// HTML escaping of & < > " ' as Jinja's filter `escape` does it.
std::string EscapeHtml(std::string_view text);

}  // namespace adder::text::jinja
