#include <algorithm>

#include "text/output_parser/json_value.h"
#include "text/output_parser/tool_format.h"

namespace adder::text {
namespace {

// Reads text between marks from the front.
class TagReader {
 public:
  explicit TagReader(std::string_view text) : rest_(text) {}

  // Skips white space, and then `mark` when it comes next.
  bool Take(std::string_view mark) {
    rest_ = rest_.substr(std::min(rest_.find_first_not_of(" \t\r\n"), rest_.size()));
    if (!rest_.starts_with(mark)) return false;
    rest_.remove_prefix(mark.size());
    return true;
  }
  // The text before `mark`, which is skipped too; nothing when it does not come.
  std::optional<std::string_view> Until(std::string_view mark) {
    const size_t at = rest_.find(mark);
    if (at == std::string_view::npos) return std::nullopt;
    const std::string_view text = rest_.substr(0, at);
    rest_.remove_prefix(at + mark.size());
    return text;
  }
  // The text before `mark` or the end; the mark stays.
  std::string_view Before(std::string_view mark) {
    const std::string_view text = rest_.substr(0, rest_.find(mark));
    rest_.remove_prefix(text.size());
    return text;
  }
  bool AtEnd() const { return TrimSpace(rest_).empty(); }

 private:
  std::string_view rest_;
};

// Templates put a value on lines of its own; those two line breaks are no part of it.
std::string_view WithoutLineBreaks(std::string_view value) {
  if (value.starts_with('\n')) value.remove_prefix(1);
  if (value.ends_with('\n')) value.remove_suffix(1);
  return value;
}

// The marks of a format whose calls are <call name><parameter name>value</parameter></call>.
struct TagSyntax {
  std::string_view call_open;
  std::string_view call_name_end;
  std::string_view call_close;
  std::string_view parameter_open;
  std::string_view parameter_name_end;
  std::string_view parameter_close;
  // Behind the name stands string="true" or string="false", which decides the type.
  bool declares_strings = false;
};

std::optional<ParsedCall> ReadCall(TagReader& reader, const TagSyntax& syntax,
                                   const ToolSchemas& schemas) {
  const auto name = reader.Until(syntax.call_name_end);
  if (!name || TrimSpace(*name).empty()) return std::nullopt;
  ParsedCall call;
  call.name = TrimSpace(*name);
  JsonObjectBuilder arguments;
  while (!reader.Take(syntax.call_close)) {
    if (!reader.Take(syntax.parameter_open)) return std::nullopt;
    const auto parameter = reader.Until(syntax.parameter_name_end);
    if (!parameter) return std::nullopt;
    SchemaTypes types = schemas.Types(call.name, *parameter);
    if (syntax.declares_strings) {
      const auto declared = reader.Until(">");
      if (!declared) return std::nullopt;
      types = declared->find("\"true\"") != std::string_view::npos ? kStringType : kOtherType;
    }
    const auto value = reader.Until(syntax.parameter_close);
    if (!value) return std::nullopt;
    const std::string_view text = syntax.declares_strings ? *value : WithoutLineBreaks(*value);
    if (!arguments.Add(*parameter, TypedArgument(text, types))) return std::nullopt;
  }
  call.arguments = arguments.Take();
  return call;
}

ParsedCalls ReadCalls(std::string_view body, const TagSyntax& syntax, const ToolSchemas& schemas) {
  TagReader reader(body);
  std::vector<ParsedCall> calls;
  while (reader.Take(syntax.call_open)) {
    std::optional<ParsedCall> call = ReadCall(reader, syntax, schemas);
    if (!call) return std::nullopt;
    calls.push_back(std::move(*call));
  }
  if (calls.empty() || !reader.AtEnd()) return std::nullopt;
  return calls;
}

}  // namespace

ParsedCalls ParseQwenXmlCalls(std::string_view body, const ToolSchemas& schemas) {
  constexpr TagSyntax kSyntax = {"<function=",  ">", "</function>",
                                 "<parameter=", ">", "</parameter>"};
  return ReadCalls(body, kSyntax, schemas);
}

ParsedCalls ParseInvokeCalls(std::string_view body, const ToolSchemas& schemas) {
  constexpr TagSyntax kSyntax = {"<invoke name=\"",    "\">", "</invoke>",
                                 "<parameter name=\"", "\">", "</parameter>"};
  return ReadCalls(body, kSyntax, schemas);
}

ParsedCalls ParseDsmlCalls(std::string_view body, const ToolSchemas& schemas) {
  constexpr TagSyntax kSyntax = {"<｜DSML｜invoke name=\"",    "\">", "</｜DSML｜invoke>",
                                 "<｜DSML｜parameter name=\"", "\"",  "</｜DSML｜parameter>",
                                 /*declares_strings=*/true};
  return ReadCalls(body, kSyntax, schemas);
}

// name<arg_key>key</arg_key><arg_value>value</arg_value>...
ParsedCalls ParseGlmCalls(std::string_view body, const ToolSchemas& schemas) {
  TagReader reader(body);
  ParsedCall call;
  call.name = TrimSpace(reader.Before("<arg_key>"));
  if (call.name.empty() || call.name.find_first_of("<>{\n") != std::string::npos) {
    return std::nullopt;
  }
  JsonObjectBuilder arguments;
  while (reader.Take("<arg_key>")) {
    const auto key = reader.Until("</arg_key>");
    if (!key || !reader.Take("<arg_value>")) return std::nullopt;
    const auto value = reader.Until("</arg_value>");
    if (!value) return std::nullopt;
    const SchemaTypes types = schemas.Types(call.name, *key);
    if (!arguments.Add(*key, TypedArgument(*value, types))) return std::nullopt;
  }
  if (!reader.AtEnd()) return std::nullopt;
  call.arguments = arguments.Take();
  return std::vector<ParsedCall>{std::move(call)};
}

}  // namespace adder::text
