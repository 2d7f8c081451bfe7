// Which classes of the well-known word patterns a character belongs to, as PCRE2 sees it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace adder::text {

// Sets of these are ored together.
enum CharacterClass : uint8_t {
  kLetter = 1,      // \p{L}
  kNumber = 2,      // \p{N}
  kWhitespace = 4,  // \s
  kNewline = 8,     // [\r\n]
  kMark = 16,       // \p{M}
  kUpperSide = 32,  // [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  kLowerSide = 64,  // [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  kNotAscii = 128,  // in kByteClasses only: the byte alone tells nothing
};

// Of the bytes of UTF-8.
inline constexpr std::array<uint8_t, 256> kByteClasses = [] {
  std::array<uint8_t, 256> classes{};
  for (size_t byte = 0x80; byte < 256; ++byte) classes[byte] = kNotAscii;
  for (size_t byte = '0'; byte <= '9'; ++byte) classes[byte] = kNumber;
  for (size_t byte = 'A'; byte <= 'Z'; ++byte) {
    classes[byte] = kLetter | kUpperSide;
    classes[byte + ('a' - 'A')] = kLetter | kLowerSide;
  }
  for (size_t byte = '\t'; byte <= '\r'; ++byte) classes[byte] = kWhitespace;
  classes[' '] = kWhitespace;
  classes['\r'] |= kNewline;
  classes['\n'] |= kNewline;
  return classes;
}();

// The classes of all characters, asked of PCRE2 a block at a time when first needed: what the
// matchers and the regular expressions say stays the same whatever version of Unicode PCRE2 knows.
class CharacterClassTable {
 public:
  // Safe to call from several threads.
  uint8_t Of(char32_t c) {
    if (!ready_[c / kBlock].load(std::memory_order_acquire)) Fill(c / kBlock);
    return classes_[c];
  }

 private:
  static constexpr char32_t kCodePoints = 0x110000;
  static constexpr char32_t kBlock = 0x1000;

  void Fill(char32_t block);

  std::array<uint8_t, kCodePoints> classes_{};
  std::array<std::atomic<bool>, kCodePoints / kBlock> ready_{};
};

// The one table of the process.
extern constinit CharacterClassTable character_class_table;

}  // namespace adder::text
