// The attributes and methods of values: those of Python's types that the sandbox allows.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

using MethodFunction = Value (*)(Runtime& runtime, const Value& self, const Arguments& arguments);

// A callable that hands `self` to `function`.
Value BindMethod(Runtime& runtime, const Value& self, std::string_view name,
                 MethodFunction function);

// An attribute or bound method of `object`, or kMissing. A method that would change a list or dict
// gives something undefined whose use is an error.
Value FindAttribute(Runtime& runtime, const Value& object, const std::string& name);

// The method of Python's str called `name`, or null.
MethodFunction FindStringMethod(std::string_view name);

// Pieces of str methods that filters use too. `separator` null: split at white space.
Value SplitText(Runtime& runtime, const Value& text, const std::string* separator,
                int64_t max_splits, bool from_right);
Value ReplaceText(Runtime& runtime, std::string_view text, std::string_view old,
                  std::string_view replacement, int64_t count, bool safe);
std::vector<std::string_view> SplitLines(std::string_view text, bool keep_ends);
// `text` with `left` and `right` copies of `fill`.
std::string Pad(Runtime& runtime, std::string_view text, size_t left, size_t right,
                std::string_view fill);

}  // namespace adder::text::jinja
