// Digits and other pieces that both kinds of formats are made of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

// More digits than any double has; bounds what a specification can ask for.
inline constexpr int kMaxPrecision = 1100;

std::string Digits(uint64_t value, unsigned base, bool upper);
uint64_t Magnitude(int64_t value);

// The digits of a non-negative finite number as printf's e, f or g writes them. `precision` is at
// most kMaxPrecision.
std::string FloatDigits(double number, char type, int precision, bool alternate);
// "inf" or "nan", without a sign.
std::string NonFinite(double number, bool upper);

// The decimal number at `position`, which moves behind it; 0 when there is none. Throws Error for
// numbers that no width has.
int ReadNumber(Runtime& runtime, std::string_view text, size_t& position);

// repr() with everything but ASCII escaped.
std::string AsciiRepr(Runtime& runtime, const Value& value);

// The character with a code; a surrogate has no UTF-8 form and becomes U+FFFD.
std::string CharacterOf(Runtime& runtime, int64_t code);

}  // namespace adder::text::jinja
