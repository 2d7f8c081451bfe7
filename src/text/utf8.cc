#include "text/utf8.h"

#include <cstdint>
#include <cstring>

namespace adder::text {
namespace {

// Length of the run of ASCII bytes at the start of `bytes`, a multiple of 8 but for the end.
size_t AsciiPrefix(std::string_view bytes) {
  size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data() + i, 8);
    if ((word & 0x8080808080808080u) != 0) return i;
  }
  while (i < bytes.size() && static_cast<uint8_t>(bytes[i]) < 0x80) ++i;
  return i;
}

}  // namespace

Utf8Unit FirstUtf8Unit(std::string_view bytes) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {1, Utf8Kind::kValid};
  if (lead < 0xC2 || lead > 0xF4) return {1, Utf8Kind::kInvalid};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte excludes overlong forms, surrogates and values above U+10FFFF.
  uint8_t low = 0x80;
  uint8_t high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (size_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {i, Utf8Kind::kIncomplete};
    if (byte(i) < low || byte(i) > high) return {i, Utf8Kind::kInvalid};
    low = 0x80;
    high = 0xBF;
  }
  return {length, Utf8Kind::kValid};
}

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    bytes.remove_prefix(AsciiPrefix(bytes));
    // Non-ASCII text comes in runs, so stay out of the word loop until it ends.
    while (!bytes.empty() && static_cast<uint8_t>(bytes[0]) >= 0x80) {
      const Utf8Unit unit = FirstUtf8Unit(bytes);
      if (unit.kind != Utf8Kind::kValid) return false;
      bytes.remove_prefix(unit.length);
    }
    if (!bytes.empty()) bytes.remove_prefix(1);
  }
  return true;
}

std::string ToValidUtf8(std::string_view bytes) {
  std::string text;
  text.reserve(bytes.size());
  Utf8Stream stream;
  stream.Push(bytes, text);
  stream.Flush(text);
  return text;
}

char32_t DecodeUtf8(std::string_view text, size_t& position) {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(text[i])); };
  const size_t i = position;
  const uint32_t lead = byte(i);
  if (lead < 0x80) {
    position = i + 1;
    return lead;
  }
  if (lead < 0xE0) {
    position = i + 2;
    return (lead & 0x1F) << 6 | (byte(i + 1) & 0x3F);
  }
  if (lead < 0xF0) {
    position = i + 3;
    return (lead & 0x0F) << 12 | (byte(i + 1) & 0x3F) << 6 | (byte(i + 2) & 0x3F);
  }
  position = i + 4;
  return (lead & 0x07) << 18 | (byte(i + 1) & 0x3F) << 12 | (byte(i + 2) & 0x3F) << 6 |
         (byte(i + 3) & 0x3F);
}

void AppendUtf8(char32_t code_point, std::string& text) {
  const auto push = [&](uint32_t value) { text.push_back(static_cast<char>(value)); };
  const uint32_t c = code_point;
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xC0 | c >> 6);
    push(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    push(0xE0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  } else {
    push(0xF0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3F));
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  }
}

void Utf8Stream::Push(std::string_view bytes, std::string& text) {
  // Complete the held character byte by byte; it needs at most three more.
  while (!held_.empty() && !bytes.empty()) {
    held_.push_back(bytes[0]);
    const Utf8Unit unit = FirstUtf8Unit(held_);
    if (unit.kind == Utf8Kind::kInvalid) {
      // The new byte does not continue the character: it starts afresh below.
      text += kReplacementCharacter;
      held_.clear();
      break;
    }
    bytes.remove_prefix(1);
    if (unit.kind == Utf8Kind::kValid) {
      text += held_;
      held_.clear();
    }
  }
  while (!bytes.empty()) {
    const size_t ascii = AsciiPrefix(bytes);
    if (ascii > 0) {
      text += bytes.substr(0, ascii);
      bytes.remove_prefix(ascii);
      continue;
    }
    const Utf8Unit unit = FirstUtf8Unit(bytes);
    if (unit.kind == Utf8Kind::kValid) {
      text += bytes.substr(0, unit.length);
    } else if (unit.kind == Utf8Kind::kInvalid) {
      text += kReplacementCharacter;
    } else {
      held_ = bytes;
    }
    bytes.remove_prefix(unit.length);
  }
}

void Utf8Stream::Flush(std::string& text) {
  if (!held_.empty()) text += kReplacementCharacter;
  held_.clear();
}

}  // namespace adder::text
