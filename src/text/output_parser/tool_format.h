// The formats in which models write tool calls: one table.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser/section_scanner.h"
#include "text/output_parser/tool_schemas.h"

namespace adder::text {

struct ParsedCall {
  std::string id;  // empty: the format has none
  std::string name;
  std::string arguments;  // JSON
};
// The calls of one section, or nothing when it is malformed.
using ParsedCalls = std::optional<std::vector<ParsedCall>>;

enum class CallIdStyle {
  kRandom,   // "call_" and 24 letters and digits, as OpenAI's
  kMistral,  // 9 letters and digits, which is all that Mistral's templates accept
};

struct ToolFormat {
  std::vector<std::string_view> names;
  std::vector<std::string_view> openers;
  SectionRules rules;
  // Takes the section between its marks; the closing one may be missing at the end of the output.
  ParsedCalls (*parse)(std::string_view body, const ToolSchemas& schemas);
  // The whole output may be a call without marks: then it begins with '{'.
  bool bare_json = false;
  CallIdStyle ids = CallIdStyle::kRandom;
  // Marks inside a section that may be special tokens.
  std::vector<std::string_view> inner_marks;
  // Texts of a chat template that tell of the format: all of one group are needed.
  std::vector<std::vector<std::string_view>> signs;
};

// In the order in which a template is searched for their signs. The first is "none".
const std::vector<ToolFormat>& ToolFormats();

// Arguments as a JSON object. Models also write the object as a JSON string, and null for none;
// nothing for anything else. `value` is JSON, or not even that.
std::optional<std::string> ArgumentsObject(std::string_view value);

// {"name": ..., "arguments": {...}}, or a list of these (json_calls.cc).
ParsedCalls ParseJsonCalls(std::string_view body, const ToolSchemas&);
// The same where no mark tells a call from other JSON: both fields are needed.
ParsedCalls ParseBareJsonCalls(std::string_view body, const ToolSchemas&);
// Mistral's: a JSON list of calls, or name[CALL_ID]id[ARGS]{...} and shorter forms of it.
ParsedCalls ParseMistralCalls(std::string_view body, const ToolSchemas&);

// [name(key="value", ...), ...] (pythonic_calls.cc).
ParsedCalls ParsePythonicCalls(std::string_view body, const ToolSchemas&);

// Names and values between tags (tagged_calls.cc).
ParsedCalls ParseQwenXmlCalls(std::string_view body, const ToolSchemas& schemas);
ParsedCalls ParseInvokeCalls(std::string_view body, const ToolSchemas& schemas);
ParsedCalls ParseDsmlCalls(std::string_view body, const ToolSchemas& schemas);
ParsedCalls ParseGlmCalls(std::string_view body, const ToolSchemas& schemas);

// Name and JSON between marks (delimited_calls.cc).
ParsedCalls ParseKimiCalls(std::string_view body, const ToolSchemas&);
ParsedCalls ParseDeepSeekCalls(std::string_view body, const ToolSchemas&);
ParsedCalls ParseSolarCalls(std::string_view body, const ToolSchemas&);

}  // namespace adder::text
