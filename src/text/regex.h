// Regular expressions of tokenizer files, run by PCRE2.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

struct pcre2_real_code_8;

namespace adder::text {

// A half-open range of bytes.
struct Range {
  size_t begin;
  size_t end;
  bool operator==(const Range&) const = default;
};

// One compiled pattern. The syntax is that of tokenizer files (Oniguruma with Ruby rules),
// rewritten to PCRE2's where the two differ: \s, \w, \h, script names, (?m), {n,m}+. Safe to share
// between threads.
class Regex {
 public:
  // Throws Error, beginning with `where`, for a pattern that is malformed or uses syntax without an
  // equivalent.
  Regex(std::string_view pattern, const std::string& where);

  // Finds the first match in valid UTF-8 that begins at or behind `start`. Throws Error, naming the
  // pattern, when the search exceeds its limits of steps and time.
  bool Find(std::string_view subject, size_t start, Range& match) const;

  // Calls visit(Range) for each match from left to right. An empty match is visited only where it
  // does not touch the match before it.
  template <class Visit>
  void ForEachMatch(std::string_view subject, Visit visit) const {
    size_t start = 0;
    size_t last_end = std::string_view::npos;
    Range match;
    while (start <= subject.size() && Find(subject, start, match)) {
      if (match.begin == match.end) {
        start = NextCharacter(subject, match.end);
        if (match.begin == last_end) continue;
      } else {
        start = match.end;
      }
      last_end = match.end;
      visit(match);
    }
  }

 private:
  static size_t NextCharacter(std::string_view subject, size_t position);
  // Null, with the error, where the pattern is not valid.
  static std::shared_ptr<pcre2_real_code_8> Compile(const std::string& translated, uint32_t options,
                                                    std::string& error_text);

  std::shared_ptr<pcre2_real_code_8> code_;
  std::shared_ptr<pcre2_real_code_8> checked_code_;  // the same, interruptible at every item
  std::string where_;
  std::string pattern_;
  bool jit_ = false;
};

// While it lives, all searches of this thread together may take a few seconds and more in
// proportion to the text: far more than real patterns need. Without one, each search may by itself.
class RegexTimeLimit {
 public:
  explicit RegexTimeLimit(size_t text_bytes);
  ~RegexTimeLimit();
  RegexTimeLimit(const RegexTimeLimit&) = delete;
  RegexTimeLimit& operator=(const RegexTimeLimit&) = delete;
};

// The PCRE2 pattern that means what `pattern` means in a tokenizer file. Exposed for tests.
std::string TranslatePattern(std::string_view pattern, const std::string& where);

}  // namespace adder::text
