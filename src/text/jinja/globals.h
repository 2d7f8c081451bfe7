// The functions that every template can call: range, dict, namespace, joiner, cycler, and those of
// transformers, raise_exception and strftime_now.
#pragma once

#include <string_view>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

// The function of this name, or kMissing.
Value MakeGlobal(Runtime& runtime, std::string_view name);
bool HasGlobal(std::string_view name);

}  // namespace adder::text::jinja
