#include "text/jinja/filters.h"

namespace adder::text::jinja {
namespace {

FilterFunction FindFilter(std::string_view name) {
  for (const auto find :
       {FindTextFilter, FindSequenceFilter, FindSelectionFilter, FindNumberFilter}) {
    if (const FilterFunction function = find(name)) return function;
  }
  return nullptr;
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
