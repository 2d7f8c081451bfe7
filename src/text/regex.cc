#include "text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <chrono>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

#include "core/error.h"

namespace adder::text {
namespace {

// Longer patterns are refused; the longest in use are below 1 KB.
constexpr size_t kMaxPatternBytes = size_t{1} << 16;
// Backtracking steps at one place of a text. Tokenizer patterns need a few per character at most.
constexpr uint32_t kMatchLimit = 20'000'000;
// One step can take time proportional to the text, so a long text gets few steps before the search
// is done again with a look at the clock in each.
constexpr size_t kUncheckedWork = size_t{1} << 28;
constexpr size_t kMinUncheckedSteps = 64;
constexpr size_t kMaxUncheckedSteps = 5000;
// Of which each takes at most one pass over the text.
constexpr uint32_t kCalloutsPerLook = 16;
// A hundred times what real patterns need.
constexpr std::chrono::seconds kTimeLimit{2};
constexpr std::chrono::microseconds kTimeLimitPerByte{5};
constexpr uint32_t kHeapLimitKib = 64 * 1024;
constexpr size_t kJitStackStart = 32 * 1024;
constexpr size_t kJitStackMax = 4 * 1024 * 1024;

// What a search needs besides the pattern, one per thread.
struct MatchState {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);

  using Clock = std::chrono::steady_clock;
  Clock::time_point deadline;
  bool limited = false;  // whether a RegexTimeLimit is in force
  uint32_t callouts = 0;

  MatchState() {
    if (data == nullptr || context == nullptr || stack == nullptr) throw std::bad_alloc();
    pcre2_set_callout(context, &MatchState::OnCallout, this);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchState() {
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    pcre2_jit_stack_free(stack);
  }
  MatchState(const MatchState&) = delete;
  MatchState& operator=(const MatchState&) = delete;

  // PCRE2 calls this where it tries a match and, in the checked form of a pattern, at every item.
  // Anything but 0 ends the search.
  static int OnCallout(pcre2_callout_block* /*block*/, void* state_pointer) {
    auto& state = *static_cast<MatchState*>(state_pointer);
    if (++state.callouts < kCalloutsPerLook) return 0;
    state.callouts = 0;
    return Clock::now() > state.deadline ? PCRE2_ERROR_CALLOUT : 0;
  }
};

MatchState& ThreadMatchState() {
  thread_local MatchState state;
  return state;
}

std::string ErrorText(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof(buffer)) < 0) return "unknown error";
  return reinterpret_cast<const char*>(buffer);
}

// Rewrites a pattern character by character, knowing only what it must: classes, groups, and where
// the last repeatable item began.
class Translator {
 public:
  Translator(std::string_view pattern, const std::string& where)
      : pattern_(pattern), where_(where) {}

  std::string Run() {
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (in_class_) {
        ClassItem(c);
      } else if (c == '\\') {
        item_ = out_.size();
        Escape();
      } else if (c == '[') {
        item_ = out_.size();
        OpenClass();
      } else if (c == '(') {
        groups_.push_back(out_.size());
        OpenGroup();
      } else if (c == ')') {
        item_ = groups_.empty() ? out_.size() : groups_.back();
        if (!groups_.empty()) groups_.pop_back();
        Copy(1);
      } else if (c == '{' && IntervalLength() > 0) {
        Interval();
      } else {
        if (c != '*' && c != '+' && c != '?') item_ = out_.size();
        Copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void Unsupported(std::string_view what) {
    Fail(where_, ": the regular expression ", pattern_, " uses ", what,
         ", which is not supported.");
  }
  char Peek(size_t ahead) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  void Copy(size_t count) {
    out_ += pattern_.substr(at_, count);
    at_ += count;
  }
  void Replace(size_t count, std::string_view text) {
    out_ += text;
    at_ += count;
  }
  // Members of a class: bare inside a class, in brackets outside.
  void ReplaceByClass(std::string_view members, bool negated, std::string_view name) {
    if (in_class_ && negated) Unsupported(name);
    if (!in_class_) out_ += negated ? "[^" : "[";
    out_ += members;
    if (!in_class_) out_ += ']';
    at_ += 2;
  }

  void Escape() {
    constexpr std::string_view kSameMeaning = "dDbBAzZnrtfaexGKkRX";
    constexpr std::string_view kWordMembers = "\\p{L}\\p{M}\\p{Nd}\\p{Pc}";
    const char c = Peek(1);
    switch (c) {
      case '\0':
        Copy(at_ + 1 < pattern_.size() ? 2 : 1);
        return;
      case 's':
        return Replace(2, "\\p{White_Space}");
      case 'S':
        return Replace(2, "\\P{White_Space}");
      case 'w':
        return ReplaceByClass(kWordMembers, false, "\\w");
      case 'W':
        return ReplaceByClass(kWordMembers, true, "\\W in a class");
      case 'h':
        return ReplaceByClass("0-9a-fA-F", false, "\\h");
      case 'H':
        return ReplaceByClass("0-9a-fA-F", true, "\\H in a class");
      case 'v':
        return Replace(2, "\\x{0B}");
      case 'p':
      case 'P':
        return Property();
      case 'u': {
        const std::string_view digits =
            pattern_.substr(at_ + 2 > pattern_.size() ? at_ : at_ + 2, 4);
        if (digits.size() < 4) Unsupported("a cut-off \\u");
        out_ += "\\x{";
        out_ += digits;
        out_ += '}';
        at_ += 6;
        return;
      }
      default:
        if (std::isalpha(static_cast<unsigned char>(c)) != 0 &&
            kSameMeaning.find(c) == std::string_view::npos) {
          Unsupported(std::string("the escape \\") + c);
        }
        Copy(2);
    }
  }

  void Property() {
    if (Peek(2) != '{') return Copy(2);
    const size_t close = pattern_.find('}', at_);
    if (close == std::string_view::npos) return Copy(2);
    std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    const bool negated = name.starts_with('^');
    if (negated) name.remove_prefix(1);
    out_ += pattern_.substr(at_, 3);
    if (negated) out_ += '^';
    out_ += PropertyName(name);
    out_ += '}';
    at_ = close + 1;
  }

  static std::string PropertyName(std::string_view name) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kCategories = {
        {{"Letter", "L"},
         {"Mark", "M"},
         {"Number", "N"},
         {"Punctuation", "P"},
         {"Symbol", "S"},
         {"Separator", "Z"},
         {"Other", "C"}}};
    constexpr std::array<std::string_view, 8> kBinary = {
        "Alphabetic", "Lowercase", "Uppercase",   "White_Space",
        "Emoji",      "Any",       "Ideographic", "Extended_Pictographic"};
    for (const auto& [longer, shorter] : kCategories) {
      if (name == longer) return std::string(shorter);
    }
    for (std::string_view binary : kBinary) {
      if (name == binary) return std::string(name);
    }
    // PCRE2 reads a bare script name as the wider set of script extensions.
    return name.size() <= 2 ? std::string(name) : "sc:" + std::string(name);
  }

  void OpenClass() {
    in_class_ = true;
    Copy(1);
    if (Peek(0) == '^') Copy(1);
    if (Peek(0) == ']') Replace(1, "\\]");
  }

  void ClassItem(char c) {
    if (c == '\\') {
      Escape();
    } else if (c == '[' && Peek(1) == ':') {
      const size_t close = pattern_.find(":]", at_);
      if (close == std::string_view::npos) Unsupported("a class inside a class");
      Copy(close + 2 - at_);
    } else if (c == '[') {
      Unsupported("a class inside a class");
    } else if (c == '&' && Peek(1) == '&') {
      Unsupported("an intersection of classes");
    } else {
      in_class_ = c != ']';
      Copy(1);
    }
  }

  // Copies "(" or "(?options"; the letter m means there what s means in PCRE2.
  void OpenGroup() {
    Copy(1);
    if (Peek(0) != '?') {
      if (Peek(0) == '*') Unsupported("a verb");
      return;
    }
    Copy(1);
    if (std::string_view("imx-").find(Peek(0)) == std::string_view::npos) {
      if (std::string_view(":=!><").find(Peek(0)) == std::string_view::npos) {
        Unsupported("an unusual group");
      }
      return Copy(1);
    }
    while (std::string_view("imx-").find(Peek(0)) != std::string_view::npos && Peek(0) != '\0') {
      if (Peek(0) == 'm') {
        Replace(1, "s");
      } else {
        Copy(1);
      }
    }
  }

  // Length of {n}, {n,}, {,m} or {n,m} here, or 0.
  size_t IntervalLength() const {
    size_t length = 1;
    bool digits = false;
    int commas = 0;
    for (;; ++length) {
      const char c = Peek(length);
      if (c == ',') {
        ++commas;
      } else if (std::isdigit(static_cast<unsigned char>(c)) != 0) {
        digits = true;
      } else {
        return c == '}' && digits && commas <= 1 ? length + 1 : 0;
      }
    }
  }

  // PCRE2 10.42 takes {,m} literally, and {n,m}+ as possessive instead of repeated.
  void Interval() {
    const size_t length = IntervalLength();
    if (Peek(1) == ',') {
      out_ += "{0";
      at_ += 1;
      Copy(length - 1);
    } else {
      Copy(length);
    }
    if (Peek(0) == '+') {
      out_.insert(item_, "(?:");
      out_ += ')';
    }
  }

  std::string_view pattern_;
  const std::string& where_;
  std::string out_;
  size_t at_ = 0;
  size_t item_ = 0;  // where in out_ the item that a quantifier repeats begins
  std::vector<size_t> groups_;
  bool in_class_ = false;
};

}  // namespace

std::string TranslatePattern(std::string_view pattern, const std::string& where) {
  return Translator(pattern, where).Run();
}

RegexTimeLimit::RegexTimeLimit(size_t text_bytes) {
  MatchState& state = ThreadMatchState();
  state.deadline =
      MatchState::Clock::now() + kTimeLimit + kTimeLimitPerByte * static_cast<int64_t>(text_bytes);
  state.limited = true;
}

RegexTimeLimit::~RegexTimeLimit() { ThreadMatchState().limited = false; }

Regex::Regex(std::string_view pattern, const std::string& where)
    : where_(where), pattern_(pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    Fail(where, ": the regular expression is ", pattern.size(), " bytes long, more than ",
         kMaxPatternBytes, ".");
  }
  const std::string translated = TranslatePattern(pattern, where);
  // Compiled as it stands it gives errors about itself; it is searched for with callouts.
  std::string error;
  if (Compile(translated, 0, error) == nullptr) {
    Fail(where, ": the regular expression ", pattern, " is not valid: ", error, ".");
  }
  // A line break ends a comment at the end of a pattern that allows them.
  for (const char* end : {")", "\n)"}) {
    const std::string wrapped = Concat("(?C1)(?:", translated, end);
    code_ = Compile(wrapped, 0, error);
    checked_code_ = Compile(wrapped, PCRE2_AUTO_CALLOUT, error);
    if (code_ == nullptr || checked_code_ == nullptr) continue;
    jit_ = pcre2_jit_compile(code_.get(), PCRE2_JIT_COMPLETE) == 0 &&
           pcre2_jit_compile(checked_code_.get(), PCRE2_JIT_COMPLETE) == 0;
    return;
  }
  Fail(where, ": the regular expression ", pattern, " cannot be compiled: ", error, ".");
}

std::shared_ptr<pcre2_real_code_8> Regex::Compile(const std::string& translated, uint32_t options,
                                                  std::string& error_text) {
  std::unique_ptr<pcre2_compile_context, decltype(&pcre2_compile_context_free)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C | options,
                    &error, &offset, context.get());
  if (code == nullptr) {
    error_text = ErrorText(error);
    return nullptr;
  }
  return {code, pcre2_code_free};
}

bool Regex::Find(std::string_view subject, size_t start, Range& match) const {
  MatchState& state = ThreadMatchState();
  if (!state.limited) state.deadline = MatchState::Clock::now() + kTimeLimit;
  const size_t steps = std::clamp(kUncheckedWork / (subject.size() - start + 1), kMinUncheckedSteps,
                                  kMaxUncheckedSteps);
  pcre2_set_match_limit(state.context, static_cast<uint32_t>(steps));
  const auto search = [&](const pcre2_code* code) {
    const auto* data = reinterpret_cast<PCRE2_SPTR>(subject.data());
    const auto match_function = jit_ ? pcre2_jit_match : pcre2_match;
    const int count = match_function(code, data, subject.size(), start, PCRE2_NO_UTF_CHECK,
                                     state.data, state.context);
    if (count != PCRE2_ERROR_JIT_STACKLIMIT) return count;
    // The interpreter keeps its frames on the heap.
    return pcre2_match(code, data, subject.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                       state.data, state.context);
  };
  int count = search(code_.get());
  if (count == PCRE2_ERROR_MATCHLIMIT) {
    pcre2_set_match_limit(state.context, kMatchLimit);
    count = search(checked_code_.get());
  }
  if (count == PCRE2_ERROR_NOMATCH) return false;
  if (count == PCRE2_ERROR_CALLOUT) {
    Fail(where_, ": the regular expression ", pattern_, " takes too long on this text.");
  }
  if (count < 0) {
    Fail(where_, ": a search with the regular expression ", pattern_, " failed: ", ErrorText(count),
         ".");
  }
  const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data);
  // \K inside a lookahead can put the begin behind the end, and \K at all before the start.
  if (bounds[0] > bounds[1] || bounds[0] < start) {
    Fail(where_, ": the regular expression moves the start of a match out of order.");
  }
  match = {bounds[0], bounds[1]};
  return true;
}

size_t Regex::NextCharacter(std::string_view subject, size_t position) {
  ++position;
  while (position < subject.size() && (static_cast<uint8_t>(subject[position]) & 0xC0) == 0x80) {
    ++position;
  }
  return position;
}

}  // namespace adder::text
