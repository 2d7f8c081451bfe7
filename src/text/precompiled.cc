#include "text/precompiled.h"

#include <algorithm>
#include <cstring>

#include "core/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

// Longer grapheme clusters are looked up character by character only.
constexpr size_t kMaxGraphemeBytes = 5;

// Bounds for CheckCharsmap. Real maps have 250 KB, and no replacement above 40 bytes.
constexpr size_t kMaxCharsmapBytes = size_t{1} << 22;
constexpr size_t kMaxReplacementBytes = 128;

std::string DecodeBase64(std::string_view text, const std::string& where) {
  const auto digit = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+') return 62;
    if (c == '/') return 63;
    return -1;
  };
  while (text.ends_with('=')) text.remove_suffix(1);
  std::string bytes;
  bytes.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int count = 0;
  for (char c : text) {
    const int value = digit(c);
    if (value < 0) Fail(where, ": precompiled_charsmap is not valid base64.");
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      bytes.push_back(static_cast<char>(bits >> count & 0xFF));
    }
  }
  return bytes;
}

// The fields of one unit of the double array.
bool HasValue(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFFu; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FFu; }
uint32_t Offset(uint32_t unit) { return (unit >> 10) << ((unit & 1u << 9) >> 6); }

}  // namespace

PrecompiledMap::PrecompiledMap(std::string_view base64, const std::string& where) {
  const std::string bytes = DecodeBase64(base64, where);
  uint32_t trie_bytes = 0;
  if (bytes.size() >= 4) std::memcpy(&trie_bytes, bytes.data(), 4);
  if (bytes.size() < 4 || trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > bytes.size() - 4) {
    Fail(where, ": precompiled_charsmap is cut off or has a wrong size.");
  }
  trie_.resize(trie_bytes / 4);
  std::memcpy(trie_.data(), bytes.data() + 4, trie_bytes);
  replacements_ = bytes.substr(4 + trie_bytes);
  if (!IsValidUtf8(replacements_)) {
    Fail(where, ": precompiled_charsmap has replacements that are not UTF-8.");
  }
  for (size_t begin = 0; begin < replacements_.size();) {
    const size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    longest_replacement_ = std::max(longest_replacement_, end - begin);
    begin = end + 1;
  }
}

std::optional<std::string_view> PrecompiledMap::Find(std::string_view text) const {
  size_t node = Offset(trie_[0]);
  for (char byte : text) {
    const auto c = static_cast<uint8_t>(byte);
    if (c == 0) return std::nullopt;
    node ^= c;
    if (node >= trie_.size() || Label(trie_[node]) != c) return std::nullopt;
    const uint32_t unit = trie_[node];
    node ^= Offset(unit);
    if (!HasValue(unit)) continue;
    if (node >= trie_.size()) return std::nullopt;
    const size_t begin = Value(trie_[node]);
    // A damaged map may point anywhere; accept only beginnings of characters.
    if (begin >= replacements_.size() ||
        (static_cast<uint8_t>(replacements_[begin]) & 0xC0) == 0x80) {
      return std::nullopt;
    }
    const size_t end = std::min(replacements_.find('\0', begin), replacements_.size());
    return std::string_view(replacements_).substr(begin, end - begin);
  }
  return std::nullopt;
}

std::string PrecompiledMap::Apply(std::string_view text) const {
  std::string mapped;
  mapped.reserve(text.size());
  while (!text.empty()) {
    const std::string_view grapheme = text.substr(0, FirstGrapheme(text));
    text.remove_prefix(grapheme.size());
    if (grapheme.size() <= kMaxGraphemeBytes) {
      if (const auto replacement = Find(grapheme)) {
        mapped += *replacement;
        continue;
      }
    }
    for (size_t position = 0; position < grapheme.size();) {
      const size_t begin = position;
      DecodeUtf8(grapheme, position);
      const std::string_view character = grapheme.substr(begin, position - begin);
      const auto replacement = Find(character);
      mapped += replacement ? *replacement : character;
    }
  }
  return mapped;
}

void CheckCharsmap(std::string_view bytes, const std::string& where) {
  const auto require = [&](bool condition) {
    if (!condition) Fail(where, " is damaged: it points outside itself.");
  };
  uint32_t trie_bytes = 0;
  require(bytes.size() > 4 && bytes.size() <= kMaxCharsmapBytes);
  std::memcpy(&trie_bytes, bytes.data(), 4);
  require(trie_bytes > 0 && trie_bytes % 4 == 0 && trie_bytes < bytes.size() - 4);
  std::vector<uint32_t> trie(trie_bytes / 4);
  std::memcpy(trie.data(), bytes.data() + 4, trie_bytes);
  const std::string_view replacements = bytes.substr(4 + trie_bytes);

  // Walk everywhere that any text can lead.
  std::vector<bool> seen(trie.size());
  std::vector<size_t> bases = {Offset(trie[0])};
  while (!bases.empty()) {
    const size_t base = bases.back();
    bases.pop_back();
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const size_t node = base ^ byte;
      require(node < trie.size());
      const uint32_t unit = trie[node];
      if (Label(unit) != byte || seen[node]) continue;
      seen[node] = true;
      const size_t next = node ^ Offset(unit);
      bases.push_back(next);
      if (!HasValue(unit)) continue;
      require(next < trie.size());
      const size_t begin = Value(trie[next]);
      require(begin < replacements.size());
      const std::string_view rest = replacements.substr(begin, kMaxReplacementBytes + 1);
      const size_t size = rest.find('\0');
      require(size != std::string_view::npos && IsValidUtf8(rest.substr(0, size)));
    }
  }
}

}  // namespace adder::text
