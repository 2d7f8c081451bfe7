#include "text/output_parser.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "text/output_parser/reasoning_format.h"
#include "text/output_parser/section_scanner.h"
#include "text/output_parser/tool_format.h"
#include "text/output_parser/tool_schemas.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

constexpr std::string_view kAuto = "auto";
// White space at the end is held back up to here, since it is dropped where a mark follows.
constexpr size_t kMaxHeldSpace = 1024;

bool IsSpace(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

template <class Format>
const Format& FindFormat(const std::vector<Format>& formats, std::string_view name,
                         std::string_view what) {
  std::string known;
  for (const Format& format : formats) {
    for (const std::string_view candidate : format.names) {
      if (candidate == name) return format;
      known += known.empty() ? "" : ", ";
      known += candidate;
    }
  }
  Fail("There is no ", what, " parser \"", name, "\"; known are ", known, ".");
}

// The first name of the format whose signs the template shows.
template <class Format>
std::string DetectName(const std::vector<Format>& formats, std::string_view source) {
  for (const Format& format : formats) {
    for (const auto& group : format.signs) {
      const bool all = std::all_of(group.begin(), group.end(), [&](std::string_view sign) {
        return source.find(sign) != std::string_view::npos;
      });
      if (all) return std::string(format.names[0]);
    }
  }
  return "none";
}

template <class Format>
std::vector<std::string> Names(const std::vector<Format>& formats) {
  std::vector<std::string> names;
  for (const Format& format : formats)
    names.insert(names.end(), format.names.begin(), format.names.end());
  return names;
}

bool EndsWithOneOf(std::string_view text, const std::vector<std::string_view>& marks) {
  return std::any_of(marks.begin(), marks.end(),
                     [&](std::string_view mark) { return text.ends_with(mark); });
}

// Numbers from a seed (splitmix64), for ids that need to differ and no more.
std::string MakeId(uint64_t seed, int index, CallIdStyle style) {
  constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  std::string id = style == CallIdStyle::kMistral ? "" : "call_";
  const int length = style == CallIdStyle::kMistral ? 9 : 24;
  uint64_t state = seed + static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u * 64;
  for (int i = 0; i < length; ++i) {
    state += 0x9E3779B97F4A7C15u;
    uint64_t mixed = state;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    mixed ^= mixed >> 31;
    id.push_back(kDigits[mixed % kDigits.size()]);
  }
  return id;
}

// Passes text on without the white space at its ends: that in front is dropped when asked for, that
// behind is held back until more text follows or it is dropped.
class TrimmedText {
 public:
  void DropLeadingSpace() { drop_leading_ = true; }
  void DropHeldSpace() { held_.clear(); }
  bool started() const { return started_; }

  void Push(std::string_view text, std::string& out) {
    for (const char c : text) {
      if (IsSpace(c) && held_.size() < kMaxHeldSpace) {
        held_.push_back(c);
        continue;
      }
      Flush(out);
      out.push_back(c);
      started_ = true;
    }
  }
  void Flush(std::string& out) {
    if (started_ || !drop_leading_) out += held_;
    held_.clear();
  }

 private:
  std::string held_;
  bool started_ = false;
  bool drop_leading_ = false;
};

}  // namespace

struct OutputParser::Impl {
  enum class State {
    kStart,  // reasoning may begin here
    kReasoning,
    kContent,
    kSection,  // in what looks like tool calls
  };

  Impl(const OutputFormat& format, OutputParserOptions parser_options)
      : tools(FindFormat(ToolFormats(), format.tool_parser, "tool call")),
        reasoning_format(FindFormat(ReasoningFormats(), format.reasoning_parser, "reasoning")),
        schemas(parser_options.tools),
        options(std::move(parser_options)),
        starts_in_reasoning(format.starts_in_reasoning && !reasoning_format.opens.empty()),
        start(reasoning_format.opens),
        reasoning_marks(ReasoningMarks()),
        content_marks(ContentMarks()),
        marks(content_marks) {
    if (reasoning_format.opens.empty()) state = State::kContent;
  }

  StopMatcher ReasoningMarks() const {
    std::vector<std::string> texts(reasoning_format.closes.begin(), reasoning_format.closes.end());
    if (reasoning_format.ends_at_tool_call) {
      texts.insert(texts.end(), tools.openers.begin(), tools.openers.end());
    }
    return StopMatcher(std::move(texts));
  }
  StopMatcher ContentMarks() const {
    std::vector<std::string> texts(tools.openers.begin(), tools.openers.end());
    texts.insert(texts.end(), reasoning_format.answer_marks.begin(),
                 reasoning_format.answer_marks.end());
    return StopMatcher(std::move(texts));
  }

  void Take(char c) {
    switch (state) {
      case State::kStart:
        return TakeStart(c);
      case State::kReasoning:
        return TakeReasoning(c);
      case State::kContent:
        return TakeContent(c);
      case State::kSection:
        return TakeSection(c);
    }
  }

  void TakeStart(char c) {
    const PrefixMatcher::Result result = start.Push(c);
    if (result == PrefixMatcher::Result::kMatched) return EnterReasoning();
    const bool space = start.space().size() > kMaxHeldSpace;
    if (result == PrefixMatcher::Result::kMore && !space) return;
    LeaveStart();
  }
  // What was held back at the beginning is text.
  void LeaveStart() {
    const std::string held = start.space() + start.seen();
    if (starts_in_reasoning) {
      EnterReasoning();
    } else {
      state = State::kContent;
    }
    for (const char byte : held) Take(byte);
  }

  void EnterReasoning() {
    state = State::kReasoning;
    marks = reasoning_marks;
    reasoning.DropLeadingSpace();
  }
  void TakeReasoning(char c) {
    Add(OutputEvent::Kind::kReasoning, marks.Push(std::string_view(&c, 1)));
    if (!marks.found()) return;
    const size_t mark = *marks.found();
    reasoning.DropHeldSpace();
    EnterContent();
    content.DropLeadingSpace();
    const size_t closes = reasoning_format.closes.size();
    if (mark >= closes) EnterSection(tools.openers[mark - closes]);
  }

  void EnterContent() {
    state = State::kContent;
    marks = content_marks;
  }
  void TakeContent(char c) {
    if (tools.bare_json && !content.started() && !bare_json_failed) {
      if (c == '{') {
        EnterSection("");
        return TakeSection(c);
      }
      // Calls without marks are separated like this.
      if (c == ';' && calls > 0) return;
    }
    Add(OutputEvent::Kind::kContent, marks.Push(std::string_view(&c, 1)));
    if (!marks.found()) return;
    const size_t mark = *marks.found();
    EnterContent();
    if (mark < tools.openers.size()) {
      EnterSection(tools.openers[mark]);
    } else {
      // A mark around the answer.
      content.DropHeldSpace();
      content.DropLeadingSpace();
    }
  }

  void EnterSection(std::string_view opener) {
    state = State::kSection;
    section.assign(opener);
    opener_size = opener.size();
    scanner.emplace(tools.rules);
  }
  void TakeSection(char c) {
    section.push_back(c);
    const SectionScanner::Result result = scanner->Push(c);
    if (result == SectionScanner::Result::kMore && section.size() <= options.max_call_bytes) return;
    const std::string undecided = section.substr(section.size() - scanner->undecided());
    section.resize(section.size() - undecided.size());
    LeaveSection(result == SectionScanner::Result::kDone);
    for (const char byte : undecided) Take(byte);
  }
  // Turns the section into calls when it is complete and well-formed, else into content.
  void LeaveSection(bool complete) {
    EnterContent();
    std::string_view body = std::string_view(section).substr(opener_size);
    // All of the closing mark, or what the end of the output left of it.
    size_t mark = tools.rules.closer.size();
    while (!body.ends_with(tools.rules.closer.substr(0, mark))) --mark;
    body.remove_suffix(mark);
    ParsedCalls parsed;
    if (complete) parsed = tools.parse(body, schemas);
    const bool valid =
        parsed && std::all_of(parsed->begin(), parsed->end(), [](const ParsedCall& call) {
          return !call.name.empty() && IsValidUtf8(call.name) && IsValidUtf8(call.id) &&
                 IsJson(call.arguments);
        });
    if (!valid) {
      bare_json_failed = true;
      Add(OutputEvent::Kind::kContent, section);
      return;
    }
    content.DropHeldSpace();
    content.DropLeadingSpace();
    for (ParsedCall& call : *parsed) AddCall(std::move(call));
  }

  void AddCall(ParsedCall call) {
    OutputEvent event;
    event.kind = OutputEvent::Kind::kToolCall;
    event.call.index = calls++;
    event.call.id =
        call.id.empty() ? MakeId(options.id_seed, event.call.index, tools.ids) : std::move(call.id);
    event.call.name = std::move(call.name);
    event.call.arguments = std::move(call.arguments);
    events.push_back(std::move(event));
  }

  // Appends to the last event where it is of the same kind.
  std::string& Text(OutputEvent::Kind kind) {
    if (events.empty() || events.back().kind != kind) {
      events.emplace_back();
      events.back().kind = kind;
    }
    return events.back().text;
  }
  void Add(OutputEvent::Kind kind, std::string_view text) {
    if (text.empty()) return;
    TrimmedText& trimmed = kind == OutputEvent::Kind::kContent ? content : reasoning;
    trimmed.Push(text, Text(kind));
  }

  std::vector<OutputEvent> TakeEvents() {
    std::vector<OutputEvent> taken = std::exchange(events, {});
    taken.erase(std::remove_if(taken.begin(), taken.end(),
                               [](const OutputEvent& event) {
                                 return event.kind != OutputEvent::Kind::kToolCall &&
                                        event.text.empty();
                               }),
                taken.end());
    return taken;
  }

  void End() {
    if (state == State::kStart) LeaveStart();
    if (state == State::kSection) LeaveSection(true);
    const OutputEvent::Kind kind =
        state == State::kReasoning ? OutputEvent::Kind::kReasoning : OutputEvent::Kind::kContent;
    Add(kind, marks.Flush());
    (kind == OutputEvent::Kind::kContent ? content : reasoning).Flush(Text(kind));
  }

  const ToolFormat& tools;
  const ReasoningFormat& reasoning_format;
  ToolSchemas schemas;
  OutputParserOptions options;
  bool starts_in_reasoning;

  State state = State::kStart;
  PrefixMatcher start;
  StopMatcher reasoning_marks;
  StopMatcher content_marks;
  StopMatcher marks;  // of the state
  TrimmedText reasoning;
  TrimmedText content;

  std::string section;  // from its opening mark on
  size_t opener_size = 0;
  std::optional<SectionScanner> scanner;
  bool bare_json_failed = false;

  int calls = 0;
  std::vector<OutputEvent> events;
};

OutputParser::OutputParser(const OutputFormat& format, OutputParserOptions options)
    : impl_(std::make_unique<Impl>(format, std::move(options))) {}
OutputParser::~OutputParser() = default;
OutputParser::OutputParser(OutputParser&&) noexcept = default;
OutputParser& OutputParser::operator=(OutputParser&&) noexcept = default;

std::vector<OutputEvent> OutputParser::Push(std::string_view text) {
  for (const char c : text) impl_->Take(c);
  return impl_->TakeEvents();
}

std::vector<OutputEvent> OutputParser::Finish() {
  impl_->End();
  return impl_->TakeEvents();
}

std::vector<std::string> ToolParserNames() { return Names(ToolFormats()); }
std::vector<std::string> ReasoningParserNames() { return Names(ReasoningFormats()); }

OutputFormat DetectOutputFormat(std::string_view template_source, std::string_view prompt,
                                std::string_view tool_parser, std::string_view reasoning_parser) {
  OutputFormat format;
  format.tool_parser =
      tool_parser == kAuto ? DetectName(ToolFormats(), template_source) : std::string(tool_parser);
  format.reasoning_parser = reasoning_parser == kAuto
                                ? DetectName(ReasoningFormats(), template_source)
                                : std::string(reasoning_parser);
  FindFormat(ToolFormats(), format.tool_parser, "tool call");
  const ReasoningFormat& reasoning =
      FindFormat(ReasoningFormats(), format.reasoning_parser, "reasoning");
  const std::string_view end = prompt.substr(0, prompt.find_last_not_of(" \t\r\n") + 1);
  format.starts_in_reasoning = EndsWithOneOf(end, reasoning.opens) ||
                               (reasoning.always_starts && !EndsWithOneOf(end, reasoning.closes));
  return format;
}

std::vector<std::string> OutputMarks(const OutputFormat& format) {
  const ToolFormat& tools = FindFormat(ToolFormats(), format.tool_parser, "tool call");
  const ReasoningFormat& reasoning =
      FindFormat(ReasoningFormats(), format.reasoning_parser, "reasoning");
  std::vector<std::string> marks;
  for (const auto* list : {&tools.openers, &tools.inner_marks, &reasoning.opens, &reasoning.closes,
                           &reasoning.answer_marks}) {
    marks.insert(marks.end(), list->begin(), list->end());
  }
  for (const std::string_view mark :
       {tools.rules.closer, tools.rules.value_open, tools.rules.value_close}) {
    if (!mark.empty()) marks.emplace_back(mark);
  }
  return marks;
}

void ParsedOutput::Add(const std::vector<OutputEvent>& events) {
  for (const OutputEvent& event : events) {
    switch (event.kind) {
      case OutputEvent::Kind::kReasoning:
        reasoning += event.text;
        break;
      case OutputEvent::Kind::kContent:
        content += event.text;
        break;
      case OutputEvent::Kind::kToolCall:
        calls.push_back(event.call);
        break;
    }
  }
}

ParsedOutput ParseOutput(std::string_view text, const OutputFormat& format,
                         OutputParserOptions options) {
  OutputParser parser(format, std::move(options));
  ParsedOutput output;
  output.Add(parser.Push(text));
  output.Add(parser.Finish());
  return output;
}

}  // namespace adder::text
