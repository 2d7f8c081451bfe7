// Renders templates for the comparison with Python's jinja2 (tests/jinja_difference_test.py).
//
// Each line of standard input is a JSON object with "template" and "variables"; each line of
// standard output is {"text": ...} or {"error": ...}. The clock stands at 2025-06-15 12:34:56.
#include <iostream>
#include <string>

#include "core/error.h"
#include "core/json.h"
#include "text/jinja/template.h"
#include "text/kit_for_test.h"

namespace {

adder::Json Render(const adder::Json& request) {
  try {
    const adder::text::jinja::Template parsed(request["template"].get<std::string>(), "template");
    adder::text::jinja::Template::Variables variables;
    for (auto item = request["variables"].begin(); item != request["variables"].end(); ++item) {
      variables.emplace_back(item.key(), *item);
    }
    return {{"text", parsed.Render(variables, adder::text::KitClock)}};
  } catch (const adder::Error& error) {
    return {{"error", error.what()}};
  }
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    std::cout << Render(adder::ParseJson(line, "standard input", 256)).dump() << std::endl;
  }
  return 0;
}
