#include "text/output_parser/json_value.h"
#include "text/output_parser/tool_format.h"

namespace adder::text {
namespace {

// Takes the text before `mark` off the front of `rest`, and the mark.
std::optional<std::string_view> TakeUntil(std::string_view& rest, std::string_view mark) {
  const size_t at = rest.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  const std::string_view text = rest.substr(0, at);
  rest.remove_prefix(at + mark.size());
  return text;
}

// Splits a section into the texts between `open` and `close`; nothing when other text is there.
std::optional<std::vector<std::string_view>> SplitCalls(std::string_view body,
                                                        std::string_view open,
                                                        std::string_view close) {
  std::vector<std::string_view> calls;
  for (std::string_view rest = TrimSpace(body); !rest.empty(); rest = TrimSpace(rest)) {
    if (!rest.starts_with(open)) return std::nullopt;
    rest.remove_prefix(open.size());
    const auto call = TakeUntil(rest, close);
    if (!call) return std::nullopt;
    calls.push_back(*call);
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

// Reads every text between `open` and `close` as one call.
template <class ReadCall>
ParsedCalls ReadCalls(std::string_view body, std::string_view open, std::string_view close,
                      const ReadCall& read) {
  const auto parts = SplitCalls(body, open, close);
  if (!parts) return std::nullopt;
  std::vector<ParsedCall> calls;
  for (const std::string_view part : *parts) {
    std::optional<ParsedCall> call = read(part);
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
  }
  return calls;
}

// The id is functions.NAME:INDEX and names the function.
std::optional<ParsedCall> ReadKimiCall(std::string_view part) {
  const auto id = TakeUntil(part, "<|tool_call_argument_begin|>");
  const auto arguments = ArgumentsObject(part);
  if (!id || !arguments) return std::nullopt;
  std::string_view name = TrimSpace(*id);
  const std::string whole(name);
  constexpr std::string_view kSpace = "functions.";
  if (name.starts_with(kSpace)) name.remove_prefix(kSpace.size());
  name = name.substr(0, name.rfind(':'));
  if (name.empty()) return std::nullopt;
  return ParsedCall{whole, std::string(name), *arguments};
}

// name<sep>{...}, or in R1 and V3 function<sep>name and the object in a fenced block.
std::optional<ParsedCall> ReadDeepSeekCall(std::string_view part) {
  constexpr std::string_view kFence = "```";
  constexpr std::string_view kJsonFence = "```json";
  const auto before = TakeUntil(part, "<｜tool▁sep｜>");
  if (!before) return std::nullopt;
  std::string_view name = TrimSpace(*before);
  std::string_view arguments = TrimSpace(part);
  if (name == "function" && arguments.ends_with(kFence)) {
    arguments.remove_suffix(kFence.size());
    const auto fenced_name = TakeUntil(arguments, kJsonFence);
    if (!fenced_name) return std::nullopt;
    name = TrimSpace(*fenced_name);
    arguments = TrimSpace(arguments);
  }
  const auto object = ArgumentsObject(arguments);
  if (name.empty() || !object) return std::nullopt;
  return ParsedCall{"", std::string(name), *object};
}

std::optional<ParsedCall> ReadSolarCall(std::string_view part) {
  const auto id = TakeUntil(part, "<|tool_call:name|>");
  const auto name = TakeUntil(part, "<|tool_call:args|>");
  const auto arguments = ArgumentsObject(part);
  if (!id || !name || TrimSpace(*name).empty() || !arguments) return std::nullopt;
  return ParsedCall{std::string(TrimSpace(*id)), std::string(TrimSpace(*name)), *arguments};
}

}  // namespace

ParsedCalls ParseKimiCalls(std::string_view body, const ToolSchemas&) {
  return ReadCalls(body, "<|tool_call_begin|>", "<|tool_call_end|>", ReadKimiCall);
}

ParsedCalls ParseDeepSeekCalls(std::string_view body, const ToolSchemas&) {
  return ReadCalls(body, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", ReadDeepSeekCall);
}

ParsedCalls ParseSolarCalls(std::string_view body, const ToolSchemas&) {
  return ReadCalls(body, "<|tool_call:begin|>", "<|tool_call:end|>", ReadSolarCall);
}

}  // namespace adder::text
