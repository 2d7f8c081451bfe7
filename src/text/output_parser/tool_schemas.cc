#include "text/output_parser/tool_schemas.h"

#include "text/output_parser/json_value.h"
#include "text/output_parser/python_literal.h"

namespace adder::text {
namespace {

// Alternatives within alternatives are followed this deep.
constexpr int kMaxAlternatives = 8;

SchemaTypes TypeOf(const Json& value) {
  if (value.is_string()) return kStringType;
  return value.is_null() ? kNullType : kOtherType;
}

SchemaTypes NamedType(const Json& name) {
  if (!name.is_string()) return kUnknownType;
  if (name == "string") return kStringType;
  return name == "null" ? kNullType : kOtherType;
}

SchemaTypes TypesOf(const Json& schema, int depth) {
  SchemaTypes types = kUnknownType;
  if (!schema.is_object() || depth > kMaxAlternatives) return types;
  for (const auto& [key, value] : schema.items()) {
    if (key == "type") {
      if (!value.is_array()) types |= NamedType(value);
      if (value.is_array()) {
        for (const Json& name : value) types |= NamedType(name);
      }
    } else if (key == "anyOf" || key == "oneOf" || key == "allOf") {
      if (!value.is_array()) continue;
      for (const Json& alternative : value) types |= TypesOf(alternative, depth + 1);
    } else if (key == "enum") {
      if (!value.is_array()) continue;
      for (const Json& member : value) types |= TypeOf(member);
    } else if (key == "const") {
      types |= TypeOf(value);
    }
  }
  return types;
}

const Json* Member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

}  // namespace

ToolSchemas::ToolSchemas(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json* function = Member(tool, "function");
    if (function == nullptr) function = &tool;
    const Json* name = Member(*function, "name");
    const Json* parameters = Member(*function, "parameters");
    if (name == nullptr || !name->is_string() || parameters == nullptr) continue;
    const Json* properties = Member(*parameters, "properties");
    if (properties == nullptr || !properties->is_object()) continue;
    auto& types = tools_[name->get<std::string>()];
    for (const auto& [key, schema] : properties->items()) types[key] = TypesOf(schema, 0);
  }
}

SchemaTypes ToolSchemas::Types(std::string_view tool, std::string_view parameter) const {
  const auto parameters = tools_.find(tool);
  if (parameters == tools_.end()) return kUnknownType;
  const auto types = parameters->second.find(parameter);
  return types == parameters->second.end() ? kUnknownType : types->second;
}

std::string TypedArgument(std::string_view text, SchemaTypes types) {
  const std::string_view trimmed = TrimSpace(text);
  if ((types & kStringType) != 0) {
    const bool null = (types & kNullType) != 0 && (trimmed == "null" || trimmed == "None");
    return null ? "null" : JsonString(text);
  }
  // Strings are written without quotes: what has some is a string that contains them.
  if (trimmed.starts_with('"') || trimmed.starts_with('\'')) return JsonString(text);
  if (IsJson(trimmed)) return std::string(trimmed);
  PythonReader reader(trimmed, PythonQuotes::kStrict);
  std::string json;
  if (reader.Literal(json) && reader.AtEnd() && IsJson(json)) return json;
  return JsonString(text);
}

}  // namespace adder::text
