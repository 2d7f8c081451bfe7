// Decides at parse time which variable each name means.
//
// jinja2 compiles a template to Python functions, and its scoping rules follow from how it hands
// variables from scope to scope: a loop body starts each time with the outer values and what it
// assigns is gone at its end; a name that a scope assigns to before reading it hides an outer one;
// an `if` is no scope. BindNames follows the same rules: it gives each variable of each scope a
// slot and notes how the slot is filled when the scope is entered.
#pragma once

#include "text/jinja/ast.h"

namespace adder::text::jinja {

// Fills in all slots and scopes. Throws Error for filters and tests that do not exist (unless they
// stand in a condition, where the template may ask first) and for a break outside of a loop.
void BindNames(ParsedTemplate& parsed);

}  // namespace adder::text::jinja
