// Character classes and normal forms of Unicode, as tokenizer files mean them.
#pragma once

#include <string>
#include <string_view>

namespace adder::text {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };

bool IsWhitespace(char32_t c);   // the property White_Space
bool IsNumeric(char32_t c);      // categories Nd, Nl, No
bool IsPunctuation(char32_t c);  // categories P*, and every ASCII punctuation or symbol; Unicode 8
bool IsMark(char32_t c);         // categories M*; Unicode 9
bool IsWord(char32_t c);         // letters, marks, decimal digits, connectors, joiners

// Appends the full lower-case form of one character, without context.
void AppendLowercase(char32_t c, std::string& text);

// Normalises valid UTF-8 by Unicode 9 (see unicode_age.h), in time proportional to n log n.
std::string Normalize(std::string_view text, NormalForm form);

// Length in bytes of the first extended grapheme cluster of valid, non-empty UTF-8.
size_t FirstGrapheme(std::string_view text);

}  // namespace adder::text
