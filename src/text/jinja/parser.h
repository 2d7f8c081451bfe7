// From tokens to the syntax tree: the grammar of jinja2 3.1.
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/ast.h"

namespace adder::text::jinja {

// Throws Error naming the template and the line. Nesting is bounded, so that neither parsing nor
// rendering nor destroying a tree needs more than bounded stack.
ParsedTemplate ParseTemplate(std::string_view source, const std::string& name);

}  // namespace adder::text::jinja
