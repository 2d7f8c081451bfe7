// A parsed Jinja template.
#pragma once

#include <ctime>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "text/jinja/ast.h"
#include "text/jinja/runtime.h"

namespace adder::text::jinja {

// The local time.
std::tm LocalTime();

// Immutable: several threads may render at once.
class Template {
 public:
  // `name` stands for the source in errors. Throws Error.
  Template(std::string_view source, const std::string& name);

  // Of two variables with one name, the first counts. Strings that are not UTF-8 get U+FFFD in
  // place of the wrong bytes. Throws Error with name and line.
  using Variables = std::vector<std::pair<std::string, Json>>;
  std::string Render(const Variables& variables, const std::function<std::tm()>& clock = LocalTime,
                     const Limits& limits = {}) const;

  // Whether the template may read a variable of this name that is not its own.
  bool Reads(std::string_view variable) const;

 private:
  ParsedTemplate parsed_;
};

}  // namespace adder::text::jinja
