// Finds where a tool call ends, byte by byte.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser/json_value.h"
#include "text/stop_strings.h"

namespace adder::text {

// Tells whether text that arrives byte by byte begins, after white space, with one of some words.
class PrefixMatcher {
 public:
  enum class Result { kMore, kMatched, kFailed };

  explicit PrefixMatcher(std::vector<std::string_view> words) : words_(std::move(words)) {}

  Result Push(char c);
  // White space before the word, and the bytes after it that have been compared.
  const std::string& space() const { return space_; }
  const std::string& seen() const { return seen_; }

 private:
  std::vector<std::string_view> words_;
  std::string space_;
  std::string seen_;
};

// The outline of a section: the text from its opening mark to its closing mark.
struct SectionRules {
  enum class Body {
    kAnything,  // up to the closing mark
    kJson,      // one JSON value, then the closing mark if there is one; a mark in a string is none
    kNamedJson,  // the same, but before an object there may be a name and further short marks
    kName,       // begins with a function's name and a mark
  };
  Body body = Body::kAnything;
  // The body begins with one of these after white space; both empty: with anything.
  std::array<std::string_view, 2> begins = {};
  std::string_view closer;  // empty: the section ends with its JSON value
  // Between these the closing mark is text (a parameter's value).
  std::string_view value_open;
  std::string_view value_close;
};

class SectionScanner {
 public:
  enum class Result { kMore, kDone, kFailed };

  // `rules` must outlive this.
  explicit SectionScanner(const SectionRules& rules);

  // Takes one byte of the section behind its opening mark. kDone: the section is complete; kFailed:
  // it is none.
  Result Push(char c);
  // Afterwards: so many of the last bytes are not part of it and may begin something else.
  size_t undecided() const { return undecided_; }

 private:
  Result PushBegin(char c);
  Result PushHeader(char c);
  Result PushBody(char c);
  Result PushJson(char c);

  const SectionRules* rules_;
  PrefixMatcher begin_;
  bool begun_;
  std::string header_;  // of kName and kNamedJson, until it is clear what follows
  bool in_header_;
  JsonBoundary json_;
  PrefixMatcher after_json_;
  std::optional<StopMatcher> marks_;  // the closing mark and, outside values, their opening mark
  bool in_value_ = false;
  size_t undecided_ = 0;
};

}  // namespace adder::text
