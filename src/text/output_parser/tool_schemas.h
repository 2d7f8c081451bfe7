// The argument types that the offered tools declare.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "core/json.h"

namespace adder::text {

// The types of JSON schema that a parameter may have, as bits.
using SchemaTypes = uint8_t;
inline constexpr SchemaTypes kUnknownType = 0;
inline constexpr SchemaTypes kStringType = 1;
inline constexpr SchemaTypes kNullType = 2;
inline constexpr SchemaTypes kOtherType = 4;  // number, integer, boolean, array, object

// The types of every parameter of every tool. What is malformed or says nothing is unknown.
class ToolSchemas {
 public:
  ToolSchemas() = default;
  explicit ToolSchemas(const Json& tools);

  SchemaTypes Types(std::string_view tool, std::string_view parameter) const;

 private:
  std::map<std::string, std::map<std::string, SchemaTypes, std::less<>>, std::less<>> tools_;
};

// JSON of an argument that a model wrote as text. A declared string is taken as it is; another
// declared type, and an unknown one, as JSON or a Python literal where the text is one, and as a
// string where it is not.
std::string TypedArgument(std::string_view text, SchemaTypes types);

}  // namespace adder::text
