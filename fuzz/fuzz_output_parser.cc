// Any text as a model's output, in any format and cut into any pieces. The parts must not depend on
// the cuts, calls must be calls, and nothing may get lost when there are no marks.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "text/output_parser.h"

namespace {

using adder::text::OutputEvent;
using adder::text::OutputFormat;
using adder::text::OutputParser;
using adder::text::OutputParserOptions;
using adder::text::ParsedOutput;
using adder::text::ToolCall;

void Require(bool condition) {
  if (!condition) __builtin_trap();
}

const adder::Json& Tools() {
  static const adder::Json kTools = adder::ParseJson(
      R"([{"type": "function", "function": {"name": "f", "parameters": {"properties": {
          "s": {"type": "string"}, "n": {"type": ["integer", "null"]}, "l": {"type": "array"}}}}}])",
      "tools");
  return kTools;
}

bool Equal(const ParsedOutput& a, const ParsedOutput& b) {
  if (a.reasoning != b.reasoning || a.content != b.content || a.calls.size() != b.calls.size()) {
    return false;
  }
  for (size_t i = 0; i < a.calls.size(); ++i) {
    const ToolCall& x = a.calls[i];
    const ToolCall& y = b.calls[i];
    if (x.id != y.id || x.name != y.name || x.arguments != y.arguments || x.index != y.index) {
      return false;
    }
  }
  return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kHeader = 4;
  if (size < kHeader) return 0;
  static const std::vector<std::string> kTools = adder::text::ToolParserNames();
  static const std::vector<std::string> kReasoning = adder::text::ReasoningParserNames();
  const OutputFormat format = {kTools[data[0] % kTools.size()],
                               kReasoning[data[1] % kReasoning.size()], (data[2] & 1) != 0};
  OutputParserOptions options;
  if ((data[2] & 2) != 0) options.tools = Tools();
  if ((data[2] & 4) != 0) options.max_call_bytes = 64;
  const std::string_view text(reinterpret_cast<const char*>(data) + kHeader, size - kHeader);

  const ParsedOutput whole = adder::text::ParseOutput(text, format, options);
  OutputParser parser(format, options);
  ParsedOutput pieces;
  uint32_t state = data[3];
  for (size_t at = 0; at < text.size();) {
    state = state * 1664525u + 1013904223u;
    const size_t length = 1 + (state >> 24) % (1 + data[3] % 16);
    const std::vector<OutputEvent> events = parser.Push(text.substr(at, length));
    for (const OutputEvent& event : events) {
      Require(event.kind == OutputEvent::Kind::kToolCall || !event.text.empty());
    }
    pieces.Add(events);
    at += length;
  }
  pieces.Add(parser.Finish());
  Require(Equal(whole, pieces));

  Require(whole.reasoning.size() + whole.content.size() <= text.size());
  for (size_t i = 0; i < whole.calls.size(); ++i) {
    const ToolCall& call = whole.calls[i];
    Require(call.index == static_cast<int>(i) && !call.name.empty() && !call.id.empty());
    Require(adder::ParseJson(call.arguments, "arguments").is_object());
  }
  if (format.tool_parser == "none" && format.reasoning_parser == "none") {
    Require(whole.content == text);
  }
  return 0;
}
