// UTF-8: validation, replacement of invalid bytes, and an incremental form for streams.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace adder::text {

// U+FFFD in UTF-8.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

enum class Utf8Kind { kValid, kInvalid, kIncomplete };

// The first unit of some bytes: a whole character, the longest invalid stretch that is to become
// one U+FFFD, or the beginning of a character that the end of the bytes cut off.
struct Utf8Unit {
  size_t length;
  Utf8Kind kind;
};

// `bytes` must not be empty.
Utf8Unit FirstUtf8Unit(std::string_view bytes);

bool IsValidUtf8(std::string_view bytes);

// Copies `bytes`, replacing every invalid or cut-off stretch by one U+FFFD.
std::string ToValidUtf8(std::string_view bytes);

// Decodes the character at `position` of valid UTF-8 and moves `position` behind it.
char32_t DecodeUtf8(std::string_view text, size_t& position);

void AppendUtf8(char32_t code_point, std::string& text);

// ToValidUtf8 for bytes that arrive in pieces: what Push and Flush append, taken together, equals
// ToValidUtf8 of all the bytes, and is valid UTF-8 after every call.
class Utf8Stream {
 public:
  // Appends the characters that `bytes` completed to `text`.
  void Push(std::string_view bytes, std::string& text);
  // Ends the stream: what was held back becomes U+FFFD.
  void Flush(std::string& text);

 private:
  std::string held_;  // an incomplete character, at most 3 bytes
};

}  // namespace adder::text
