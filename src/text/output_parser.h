// Splits what a model writes into reasoning, content and tool calls, as the text arrives.
//
// Models mark these parts in ways of their own, which their chat templates show. The formats have
// the names that vLLM and SGLang gave their parsers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace adder::text {

// One call that the model asks for.
struct ToolCall {
  int index = 0;          // 0, 1, ... within the output
  std::string id;         // the model's own where the format has one, otherwise made up
  std::string name;       // never empty
  std::string arguments;  // a JSON object as text, keys in the model's order, none twice
};

struct OutputEvent {
  enum class Kind { kReasoning, kContent, kToolCall };
  Kind kind = Kind::kContent;
  std::string text;  // of reasoning and content: what is to be appended
  ToolCall call;     // of a tool call, which is complete
};

// Which marks to look for.
struct OutputFormat {
  std::string tool_parser = "none";
  std::string reasoning_parser = "none";
  // The prompt has opened the reasoning already, so the output begins inside it.
  bool starts_in_reasoning = false;
};

// The names that OutputFormat may hold, "none" first.
std::vector<std::string> ToolParserNames();
std::vector<std::string> ReasoningParserNames();

// The format of the model whose chat template has this source, judged by the marks that the source
// mentions. `prompt` is the rendered prompt: its end tells whether the reasoning is open. A name
// other than "auto" overrides what the template says. Throws Error for an unknown name.
OutputFormat DetectOutputFormat(std::string_view template_source, std::string_view prompt,
                                std::string_view tool_parser = "auto",
                                std::string_view reasoning_parser = "auto");

// The marks of a format that may be special tokens of a vocabulary. A detokeniser has to show them,
// or the parser does not see them.
std::vector<std::string> OutputMarks(const OutputFormat& format);

struct OutputParserOptions {
  // The tools that the model was offered (an array in OpenAI's form, or null). Their schemas decide
  // the types of arguments in formats that write every value as text.
  Json tools;
  uint64_t id_seed = 0;  // of made-up call ids
  // A call whose text is longer is passed through as content.
  size_t max_call_bytes = size_t{4} << 20;
};

// What Push and Finish return, joined, does not depend on where the text was cut into pieces.
//
// - White space at both ends of reasoning, between reasoning and content, and beside tool calls is
//   dropped; other text is passed on unchanged. Without reasoning and calls, content is the output.
// - Reasoning is recognised at the beginning of the output only. Reasoning that never ends stays
//   reasoning.
// - Text that could become a mark is held back until that is decided, a call until it is complete.
//   What turns out to be no call (malformed, cut off by the end, too long) is content, unchanged.
//   A call that lacks nothing but its closing mark at the end of the output is a call.
//
// Takes time proportional to the text and memory for one call; nothing the model writes throws.
class OutputParser {
 public:
  // Throws Error for an unknown name in `format`.
  explicit OutputParser(const OutputFormat& format, OutputParserOptions options = {});
  ~OutputParser();
  OutputParser(OutputParser&&) noexcept;
  OutputParser& operator=(OutputParser&&) noexcept;

  // Takes more text, whole UTF-8 characters.
  std::vector<OutputEvent> Push(std::string_view text);
  // Ends the output. Call it once, last.
  std::vector<OutputEvent> Finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Events put together again.
struct ParsedOutput {
  std::string reasoning;
  std::string content;
  std::vector<ToolCall> calls;

  void Add(const std::vector<OutputEvent>& events);
};

// A whole output at once.
ParsedOutput ParseOutput(std::string_view text, const OutputFormat& format,
                         OutputParserOptions options = {});

}  // namespace adder::text
