#include "text/jinja/filters.h"

#include <unordered_map>

namespace adder::text::jinja {
namespace {

FilterFunction FindFilter(std::string_view name) {
  static const auto filters = [] {
    std::unordered_map<std::string_view, FilterFunction> all;
    for (const auto group :
         {TextFilters(), SequenceFilters(), SelectionFilters(), NumberFilters()}) {
      for (const NamedFilter& filter : group) all.emplace(filter.name, filter.function);
    }
    return all;
  }();
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

}  // namespace

bool HasFilter(std::string_view name) { return FindFilter(name) != nullptr; }

std::string MissingFilter(std::string_view name) {
  if (name == "from_json" || name == "fromjson") {
    return Concat("There is no filter ", name,
                  " in Jinja: a template cannot parse JSON. Pass the parsed value instead, such as "
                  "arguments of tool calls as an object.");
  }
  return Concat("There is no filter ", name, ".");
}

Value ApplyFilter(Runtime& runtime, std::string_view name, const Value& input,
                  const Arguments& arguments) {
  const FilterFunction function = FindFilter(name);
  if (function == nullptr) runtime.Fail(MissingFilter(name));
  return function(runtime, input, arguments);
}

}  // namespace adder::text::jinja
