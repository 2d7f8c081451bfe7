// Characters that the tokenizers library knows by older tables of Unicode than the rest of the
// world.
//
// Version 0.23 classifies punctuation by Unicode 8 and normalises by Unicode 9: to it, what came
// later is an unassigned character without properties. Ids must agree with it, whatever version the
// installed libraries have, so these characters are listed here. They were found by asking it about
// every code point (combining with all combining classes for the normal forms).
#pragma once

namespace adder::text {

bool IsNewPunctuation(char32_t c);  // category P only since Unicode 9
bool IsNewMark(char32_t c);         // no mark in the reference's tables
bool HasNewNormalForm(char32_t c);  // neither decomposes, nor composes, nor has a combining class

}  // namespace adder::text
