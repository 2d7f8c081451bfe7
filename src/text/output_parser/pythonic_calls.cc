#include "text/output_parser/json_value.h"
#include "text/output_parser/python_literal.h"
#include "text/output_parser/tool_format.h"

namespace adder::text {
namespace {

// name(key=literal, ...), behind which the reader then stands.
std::optional<ParsedCall> ReadCall(PythonReader& reader) {
  ParsedCall call;
  call.name = reader.Name();
  if (call.name.empty() || !reader.Take('(')) return std::nullopt;
  JsonObjectBuilder arguments;
  for (bool first = true; !reader.Take(')'); first = false) {
    if (!first) {
      if (!reader.Take(',')) return std::nullopt;
      if (reader.Take(')')) break;
    }
    const std::string_view key = reader.Name();
    std::string value;
    if (!reader.Take('=') || !reader.Literal(value) || !arguments.Add(key, value)) {
      return std::nullopt;
    }
  }
  call.arguments = arguments.Take();
  return call;
}

ParsedCalls ReadCalls(std::string_view body, PythonQuotes quotes) {
  PythonReader reader(body, quotes);
  // The brackets are part of the format, but models leave them out around a single call.
  const bool list = reader.Take('[');
  std::vector<ParsedCall> calls;
  while (!(list ? reader.Take(']') : reader.AtEnd())) {
    if (!calls.empty()) {
      if (!reader.Take(',')) return std::nullopt;
      if (list && reader.Take(']')) break;
    }
    std::optional<ParsedCall> call = ReadCall(reader);
    if (!call || !IsJson(call->arguments)) return std::nullopt;
    calls.push_back(std::move(*call));
  }
  if (!reader.AtEnd() || calls.empty()) return std::nullopt;
  return calls;
}

}  // namespace

ParsedCalls ParsePythonicCalls(std::string_view body, const ToolSchemas& schemas) {
  body = TrimSpace(body);
  // LFM2 writes JSON where the system prompt asks for it.
  if (body.starts_with('{') || IsJson(body)) return ParseJsonCalls(body, schemas);
  if (ParsedCalls calls = ReadCalls(body, PythonQuotes::kStrict)) return calls;
  return ReadCalls(body, PythonQuotes::kLenient);
}

}  // namespace adder::text
