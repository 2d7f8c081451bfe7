// Jinja's tests: `value is name(arguments)`.
#pragma once

#include <string_view>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

bool HasTest(std::string_view name);

// Throws Error when there is no such test.
bool ApplyTest(Runtime& runtime, std::string_view name, const Value& input,
               const Arguments& arguments);

}  // namespace adder::text::jinja
