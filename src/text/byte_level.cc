#include "text/byte_level.h"

#include <array>

#include "text/utf8.h"

namespace adder::text {
namespace {

constexpr char32_t kFirstExtra = 0x100;

constexpr bool StandsForItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

struct Alphabet {
  std::array<char32_t, 256> character{};
  // Indexed by character, up to the last extra one; -1 where none.
  std::array<int16_t, kFirstExtra + 68> byte{};

  constexpr Alphabet() {
    byte.fill(-1);
    char32_t extra = kFirstExtra;
    for (uint32_t value = 0; value < 256; ++value) {
      character[value] = StandsForItself(value) ? value : extra++;
      byte[character[value]] = static_cast<int16_t>(value);
    }
  }
};

constexpr Alphabet kAlphabet;

}  // namespace

char32_t ByteToCharacter(uint8_t byte) { return kAlphabet.character[byte]; }

std::optional<uint8_t> CharacterToByte(char32_t character) {
  if (character >= kAlphabet.byte.size() || kAlphabet.byte[character] < 0) return std::nullopt;
  return static_cast<uint8_t>(kAlphabet.byte[character]);
}

void AppendByteCharacters(std::string_view bytes, std::string& text) {
  for (char byte : bytes) AppendUtf8(ByteToCharacter(static_cast<uint8_t>(byte)), text);
}

std::optional<std::string> BytesOfCharacters(std::string_view text) {
  std::string bytes;
  bytes.reserve(text.size());
  size_t position = 0;
  while (position < text.size()) {
    const std::optional<uint8_t> byte = CharacterToByte(DecodeUtf8(text, position));
    if (!byte) return std::nullopt;
    bytes.push_back(static_cast<char>(*byte));
  }
  return bytes;
}

}  // namespace adder::text
