#include "core/json.h"
#include "text/output_parser/json_value.h"
#include "text/output_parser/tool_format.h"

namespace adder::text {
namespace {

// `object` is valid JSON. `strict`: it may be something else, so both fields must be there.
std::optional<ParsedCall> CallOfObject(std::string_view object, bool strict) {
  if (!object.starts_with('{')) return std::nullopt;
  ParsedCall call;
  std::optional<std::string> arguments;
  for (const auto& [key, value] : JsonMembers(object)) {
    if (key == "function" && value.starts_with('{')) {
      return CallOfObject(value, strict);  // OpenAI's form
    }
    if (key == "name" || key == "tool_name") {
      if (!value.starts_with('"')) return std::nullopt;
      call.name = Json::parse(value).get<std::string>();
    } else if (key == "arguments" || key == "parameters") {
      arguments = ArgumentsObject(value);
      if (!arguments) return std::nullopt;
    } else if ((key == "id" || key == "tool_call_id") && value.starts_with('"')) {
      call.id = Json::parse(value).get<std::string>();
    }
  }
  if (call.name.empty() || (strict && !arguments)) return std::nullopt;
  call.arguments = arguments.value_or("{}");
  return call;
}

ParsedCalls CallsOfJson(std::string_view body, bool strict) {
  body = TrimSpace(body);
  if (!IsJson(body)) return std::nullopt;
  std::vector<std::string_view> objects = {body};
  if (body.starts_with('[')) objects = JsonElements(body);
  std::vector<ParsedCall> calls;
  for (const std::string_view object : objects) {
    std::optional<ParsedCall> call = CallOfObject(object, strict);
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
  }
  if (calls.empty()) return std::nullopt;
  return calls;
}

}  // namespace

std::optional<std::string> ArgumentsObject(std::string_view value) {
  value = TrimSpace(value);
  if (!IsJson(value)) return std::nullopt;
  if (value == "null") return "{}";
  if (value.starts_with('"')) {
    const auto text = Json::parse(value).get<std::string>();
    const std::string_view object = TrimSpace(text);
    if (!object.starts_with('{') || !IsJson(object)) return std::nullopt;
    return std::string(object);
  }
  if (!value.starts_with('{')) return std::nullopt;
  return std::string(value);
}

ParsedCalls ParseJsonCalls(std::string_view body, const ToolSchemas&) {
  return CallsOfJson(body, false);
}

ParsedCalls ParseBareJsonCalls(std::string_view body, const ToolSchemas&) {
  return CallsOfJson(body, true);
}

ParsedCalls ParseMistralCalls(std::string_view body, const ToolSchemas& schemas) {
  constexpr std::string_view kId = "[CALL_ID]";
  constexpr std::string_view kArguments = "[ARGS]";
  body = TrimSpace(body);
  if (body.starts_with('[')) return ParseJsonCalls(body, schemas);
  const size_t brace = body.find('{');
  if (brace == std::string_view::npos) return std::nullopt;
  std::string_view header = TrimSpace(body.substr(0, brace));
  const auto arguments = ArgumentsObject(body.substr(brace));
  if (!arguments) return std::nullopt;
  if (header.ends_with(kArguments)) header.remove_suffix(kArguments.size());
  ParsedCall call;
  if (const size_t at = header.find(kId); at != std::string_view::npos) {
    call.id = TrimSpace(header.substr(at + kId.size()));
    header = header.substr(0, at);
  }
  call.name = TrimSpace(header);
  call.arguments = *arguments;
  if (call.name.empty()) return ParseJsonCalls(*arguments, schemas);
  if (call.name.find_first_of("[]\"") != std::string::npos) return std::nullopt;
  return std::vector<ParsedCall>{std::move(call)};
}

}  // namespace adder::text
