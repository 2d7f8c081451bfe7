// The byte-level alphabet: every byte written as one printable character, so that a vocabulary of
// strings can hold arbitrary bytes. Printable Latin-1 bytes stand for themselves; the other 68 take
// the characters from U+0100 on, in byte order (space is U+0120).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace adder::text {

char32_t ByteToCharacter(uint8_t byte);
// The byte a character stands for, or nothing.
std::optional<uint8_t> CharacterToByte(char32_t character);

// Appends the characters of all `bytes`.
void AppendByteCharacters(std::string_view bytes, std::string& text);
// The bytes of a valid UTF-8 text whose every character stands for a byte, or nothing.
std::optional<std::string> BytesOfCharacters(std::string_view text);

}  // namespace adder::text
