#include "text/added_tokens.h"

#include <algorithm>
#include <unordered_set>

#include "core/error.h"
#include "text/unicode.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

// Bounds the time that looking for tokens at one place can take. Real ones are below 100 bytes.
constexpr size_t kMaxContentBytes = 1024;

// Start of the last character of non-empty UTF-8.
size_t LastCharacter(std::string_view text) {
  size_t position = text.size() - 1;
  while ((static_cast<uint8_t>(text[position]) & 0xC0) == 0x80) --position;
  return position;
}

bool EndsWithWord(std::string_view text) {
  if (text.empty()) return false;
  size_t position = LastCharacter(text);
  return IsWord(DecodeUtf8(text, position));
}

bool StartsWithWord(std::string_view text) {
  size_t position = 0;
  return !text.empty() && IsWord(DecodeUtf8(text, position));
}

// Where the whitespace at the end of text[begin, end) starts.
size_t TrailingSpace(std::string_view text, size_t begin, size_t end) {
  while (end > begin) {
    const size_t last = LastCharacter(text.substr(0, end));
    size_t position = last;
    if (!IsWhitespace(DecodeUtf8(text, position))) break;
    end = last;
  }
  return std::max(begin, end);
}

// Where the whitespace that starts at `position` ends.
size_t LeadingSpace(std::string_view text, size_t position) {
  while (position < text.size()) {
    size_t next = position;
    if (!IsWhitespace(DecodeUtf8(text, next))) break;
    position = next;
  }
  return position;
}

size_t BytePair(char first, char second) {
  return size_t{static_cast<uint8_t>(first)} << 8 | static_cast<uint8_t>(second);
}

}  // namespace

AddedToken ReadAddedToken(const JsonObject& object, int32_t id) {
  AddedToken token;
  token.content = object.String({"content"});
  token.id = id;
  token.single_word = object.Bool({"single_word"}, false);
  token.lstrip = object.Bool({"lstrip"}, false);
  token.rstrip = object.Bool({"rstrip"}, false);
  token.special = object.Bool({"special"}, false);
  token.normalized = object.Bool({"normalized"}, !token.special);
  if (token.content.size() > kMaxContentBytes) {
    Fail(object.where(), ": the content is longer than ", kMaxContentBytes, " bytes.");
  }
  return token;
}

void AddedTokenFinder::Add(const AddedToken& token, std::string_view text) {
  if (text.empty()) return;
  trie_.Add(text, static_cast<int32_t>(tokens_.size()));
  tokens_.push_back(token);
  first_[static_cast<uint8_t>(text[0])] = true;
  if (text.size() == 1) {
    has_single_byte_ = true;
    for (size_t second = 0; second < 256; ++second) {
      first_two_[BytePair(text[0], static_cast<char>(second))] = true;
    }
  } else {
    first_two_[BytePair(text[0], text[1])] = true;
  }
}

int32_t AddedTokenFinder::LongestAt(std::string_view text, size_t position, size_t& length) const {
  int32_t index = -1;
  trie_.ForEachPrefix(text.substr(position), [&](size_t prefix, int32_t value) {
    length = prefix;
    index = value;
  });
  return index;
}

void AddedTokenFinder::Split(std::string_view text, std::vector<Segment>& segments) const {
  segments.clear();
  size_t done = 0;  // everything before is in a segment
  size_t position = 0;
  while (!tokens_.empty()) {
    while (position < text.size() && !first_[static_cast<uint8_t>(text[position])]) ++position;
    if (position >= text.size()) break;
    const bool last_byte = position + 1 == text.size();
    if (last_byte ? !has_single_byte_ : !first_two_[BytePair(text[position], text[position + 1])]) {
      ++position;
      continue;
    }
    size_t length = 0;
    const int32_t index = LongestAt(text, position, length);
    if (index < 0) {
      ++position;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = position;
    size_t end = position + length;
    // The search goes on behind the match, even where what follows rejects or widens it.
    position = end;
    if (token.single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end)))) {
      continue;
    }
    // A token inside the whitespace that the one before it took along counts nevertheless, and the
    // rest of that whitespace is text again; so say the reference's results.
    if (token.lstrip) begin = TrailingSpace(text, done, begin);
    if (token.rstrip) end = LeadingSpace(text, end);
    if (begin >= end) continue;
    if (done < begin) segments.push_back({done, begin, -1});
    segments.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) segments.push_back({done, text.size(), -1});
}

AddedTokens::AddedTokens(const Json& value, const std::string& where, const Vocabulary& vocabulary,
                         const std::function<std::string(std::string_view)>& normalize) {
  if (value.is_null()) return;
  if (!value.is_array()) Fail(where, " should be an array.");
  std::unordered_set<std::string> seen;
  for (size_t i = 0; i < value.size(); ++i) {
    const JsonObject object(value[i], Concat(where, "[", i, "]"));
    AddedToken token = ReadAddedToken(
        object, static_cast<int32_t>(object.Int({"id"}, 0, Vocabulary::kMaxIds - 1)));
    if (token.content.empty() || !seen.insert(token.content).second) continue;
    const int32_t known = vocabulary.Find(token.content);
    if (known >= 0) token.id = known;
    token.decoded = token.normalized ? normalize(token.content) : token.content;
    (token.normalized ? normalized_ : raw_).Add(token, token.decoded);
    tokens_.push_back(std::move(token));
  }
}

AddedTokens::AddedTokens(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  for (AddedToken& token : tokens_) {
    token.decoded = token.content;
    raw_.Add(token, token.content);
  }
}

}  // namespace adder::text
