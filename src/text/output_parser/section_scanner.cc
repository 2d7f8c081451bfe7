#include "text/output_parser/section_scanner.h"

#include <algorithm>
#include <cctype>

namespace adder::text {
namespace {

// A longer header before a call's arguments is none; a name may have 64 bytes at OpenAI.
constexpr size_t kMaxHeaderBytes = 512;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

// What may stand in a function's name.
bool IsNameCharacter(char c) {
  constexpr std::string_view kOthers = "_-.:/";
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         kOthers.find(c) != std::string_view::npos;
}

std::vector<std::string_view> Words(const SectionRules& rules) {
  std::vector<std::string_view> words;
  for (const std::string_view word : rules.begins) {
    if (!word.empty()) words.push_back(word);
  }
  return words;
}

StopMatcher Marks(const SectionRules& rules, bool in_value) {
  std::vector<std::string> marks;
  if (in_value) {
    marks.emplace_back(rules.value_close);
  } else {
    if (!rules.closer.empty()) marks.emplace_back(rules.closer);
    if (!rules.value_open.empty()) marks.emplace_back(rules.value_open);
  }
  return StopMatcher(std::move(marks));
}

}  // namespace

PrefixMatcher::Result PrefixMatcher::Push(char c) {
  if (seen_.empty() && IsSpace(c)) {
    space_.push_back(c);
    return Result::kMore;
  }
  seen_.push_back(c);
  Result result = Result::kFailed;
  for (const std::string_view word : words_) {
    if (!word.starts_with(seen_)) continue;
    if (word.size() == seen_.size()) return Result::kMatched;
    result = Result::kMore;
  }
  return result;
}

SectionScanner::SectionScanner(const SectionRules& rules)
    : rules_(&rules),
      begin_(Words(rules)),
      begun_(rules.begins[0].empty()),
      in_header_(rules.body == SectionRules::Body::kName ||
                 rules.body == SectionRules::Body::kNamedJson),
      after_json_({rules.closer}),
      marks_(Marks(rules, false)) {}

SectionScanner::Result SectionScanner::Push(char c) {
  if (!begun_) return PushBegin(c);
  if (in_header_) return PushHeader(c);
  const bool json =
      rules_->body == SectionRules::Body::kJson || rules_->body == SectionRules::Body::kNamedJson;
  return json ? PushJson(c) : PushBody(c);
}

SectionScanner::Result SectionScanner::PushBegin(char c) {
  switch (begin_.Push(c)) {
    case PrefixMatcher::Result::kMore:
      // White space without end is no beginning.
      return begin_.space().size() > kMaxHeaderBytes ? Result::kFailed : Result::kMore;
    case PrefixMatcher::Result::kFailed:
      undecided_ = begin_.seen().size();
      return Result::kFailed;
    case PrefixMatcher::Result::kMatched:
      break;
  }
  begun_ = true;
  // The word is part of the body.
  Result result = Result::kMore;
  for (const char byte : std::string(begin_.seen())) result = Push(byte);
  return result;
}

SectionScanner::Result SectionScanner::PushHeader(char c) {
  if (rules_->body == SectionRules::Body::kNamedJson) {
    const bool list = c == '[' && TrimSpace(header_).empty();
    if (c == '{' || list) {
      in_header_ = false;
      return PushJson(c);
    }
    header_.push_back(c);
    return header_.size() > kMaxHeaderBytes || c == '\n' ? Result::kFailed : Result::kMore;
  }
  // A name between white space, then a mark.
  const std::string_view name = TrimSpace(header_);
  const bool after_name = !name.empty() && IsSpace(header_.back());
  if (c == '<' && !name.empty()) {
    in_header_ = false;
    return PushBody(c);
  }
  if (!IsSpace(c) && (!IsNameCharacter(c) || after_name)) {
    undecided_ = 1;
    return Result::kFailed;
  }
  header_.push_back(c);
  return header_.size() > kMaxHeaderBytes ? Result::kFailed : Result::kMore;
}

SectionScanner::Result SectionScanner::PushBody(char c) {
  marks_->Push(std::string_view(&c, 1));
  if (!marks_->found()) return Result::kMore;
  const bool closed = !in_value_ && *marks_->found() == 0;
  if (closed) return Result::kDone;
  in_value_ = !in_value_;
  marks_ = Marks(*rules_, in_value_);
  return Result::kMore;
}

SectionScanner::Result SectionScanner::PushJson(char c) {
  if (json_.complete()) {
    // The call is there. Where its closing mark is missing, other text begins.
    const PrefixMatcher::Result result = after_json_.Push(c);
    if (result == PrefixMatcher::Result::kMore) return Result::kMore;
    if (result == PrefixMatcher::Result::kFailed) undecided_ = after_json_.seen().size();
    return Result::kDone;
  }
  const bool in_string = json_.in_string();
  if (json_.Push(c) && rules_->closer.empty()) return Result::kDone;
  if (json_.in_string()) {
    if (!in_string) marks_ = Marks(*rules_, false);
    return Result::kMore;
  }
  // A closing mark inside the value, but in no string, ends what is malformed.
  return in_string ? Result::kMore : PushBody(c);
}

}  // namespace adder::text
