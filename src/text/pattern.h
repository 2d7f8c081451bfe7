// The "pattern" field of tokenizer components: a literal string or a regular expression.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/json.h"
#include "text/split_regex.h"

namespace adder::text {

class Pattern {
 public:
  // Reads {"String": ...} or {"Regex": ...} from the field "pattern" of a component.
  explicit Pattern(const JsonObject& component);

  // The literal string, or null for a regular expression. It is never empty.
  const std::string* literal() const { return regex_ ? nullptr : &literal_; }

  // Calls visit(Range) for each match in `text` from left to right.
  template <class Visit>
  void ForEachMatch(std::string_view text, Visit visit) const {
    if (regex_) return regex_->ForEachMatch(text, visit);
    for (size_t at = 0; (at = text.find(literal_, at)) != std::string_view::npos;) {
      visit(Range{at, at + literal_.size()});
      at += literal_.size();
    }
  }

  // How many times as long ReplaceAll can make a text, at most.
  size_t Growth(std::string_view content) const {
    // An expression may match the empty string, once per character and once at the end.
    if (regex_) return content.size() + 1;
    return (content.size() + literal_.size() - 1) / literal_.size();
  }

  // `text` with every match replaced by `content`.
  std::string ReplaceAll(std::string_view text, std::string_view content) const;

 private:
  std::string literal_;
  std::optional<SplitRegex> regex_;
};

}  // namespace adder::text
