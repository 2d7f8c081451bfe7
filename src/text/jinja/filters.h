// Jinja's filters, and the filter tojson as transformers has it.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

using FilterFunction = Value (*)(Runtime& runtime, const Value& input, const Arguments& arguments);

struct NamedFilter {
  std::string_view name;
  FilterFunction function;
};

bool HasFilter(std::string_view name);
// What to say of a filter that does not exist.
std::string MissingFilter(std::string_view name);

// Throws Error when there is no such filter.
Value ApplyFilter(Runtime& runtime, std::string_view name, const Value& input,
                  const Arguments& arguments);

// Filters by what they work on; each is null when the name is not among them.
FilterFunction FindTextFilter(std::string_view name);
FilterFunction FindNumberFilter(std::string_view name);
FilterFunction FindSequenceFilter(std::string_view name);
FilterFunction FindSelectionFilter(std::string_view name);

}  // namespace adder::text::jinja
