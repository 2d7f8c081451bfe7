// Python's operators on values, and how Jinja finds attributes and elements.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace adder::text::jinja {

// All but `and` and `or`, which do not always evaluate both sides.
Value ApplyBinary(Runtime& runtime, BinaryOperator op, const Value& left, const Value& right);
Value ApplyUnary(Runtime& runtime, UnaryOperator op, const Value& operand);

bool Compare(Runtime& runtime, Comparison comparison, const Value& left, const Value& right);
// left < right. Throws Error for types that have no order.
bool IsLess(Runtime& runtime, const Value& left, const Value& right);
bool Contains(Runtime& runtime, const Value& container, const Value& item);

// object.name: an attribute or method, else an element with that key, else something undefined.
Value GetAttribute(Runtime& runtime, const Value& object, const std::string& name);
// object[key]: an element, else an attribute or method, else something undefined.
Value GetElement(Runtime& runtime, const Value& object, const Value& key);
// object[start:stop:step]; kNone for absent parts.
Value GetSlice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
               const Value& step);

// What may be undefined is an error.
void RequireDefined(Runtime& runtime, const Value& value);

}  // namespace adder::text::jinja
