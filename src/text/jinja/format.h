// Python's two ways to format values into a text: "%s" % value and "{}".format(value).
#pragma once

#include <string>
#include <string_view>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

// format % values, where `values` is a tuple, a dict for "%(name)s", or one value.
Value FormatPercent(Runtime& runtime, const Value& format, const Value& values);

// format.format(arguments...)
Value FormatBraces(Runtime& runtime, const Value& format, const Arguments& arguments);

// format(value, specification): "{:>8.2f}" has the specification ">8.2f".
std::string FormatValue(Runtime& runtime, const Value& value, std::string_view specification);

}  // namespace adder::text::jinja
