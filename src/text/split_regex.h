// Regular expressions that split a text into words.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "text/regex.h"

namespace adder::text {

// Where the match that begins at `begin`, a place inside valid UTF-8, ends. A function for patterns
// that match at every place, with at least one character.
using WordMatcher = size_t (*)(std::string_view text, size_t begin);

// The pattern of GPT-2, which files mean but do not spell.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct WordPattern {
  std::string_view pattern;
  WordMatcher matcher;
};

// The patterns with a matcher, spelled exactly as tokenizer files spell them: GPT-2; Llama 3, which
// is cl100k; Qwen 2; Qwen 3.5; GPT-4o, which is o200k.
std::span<const WordPattern> KnownWordPatterns();

// Null for other patterns.
WordMatcher FindWordMatcher(std::string_view pattern);

// A Regex, only faster where there is a matcher. The matches are the same.
class SplitRegex {
 public:
  // Throws Error as Regex does.
  SplitRegex(std::string_view pattern, const std::string& where)
      : regex_(pattern, where), matcher_(FindWordMatcher(pattern)) {}

  // Calls visit(Range) for each match from left to right, as Regex does.
  template <class Visit>
  void ForEachMatch(std::string_view text, Visit visit) const {
    if (matcher_ == nullptr) return regex_.ForEachMatch(text, visit);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = matcher_(text, begin);
      visit(Range{begin, end});
      begin = end;
    }
  }

 private:
  Regex regex_;
  WordMatcher matcher_;
};

}  // namespace adder::text
