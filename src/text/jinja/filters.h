// Jinja's filters, and the filter tojson as transformers has it.
#pragma once

#include <span>
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

// All filters, by what they work on.
std::span<const NamedFilter> TextFilters();
std::span<const NamedFilter> NumberFilters();
std::span<const NamedFilter> SequenceFilters();
std::span<const NamedFilter> SelectionFilters();

}  // namespace adder::text::jinja
