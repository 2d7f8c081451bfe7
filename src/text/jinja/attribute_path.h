// "a.b.0": a way through attributes and elements, as filters take it.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

class AttributePath {
 public:
  // `path` is a string, an integer, or None for the value itself.
  AttributePath(Runtime& runtime, const Value& path);

  // What the path leads to from `value`; `absent` (unless it is null or None) in place of something
  // undefined.
  Value Follow(Runtime& runtime, const Value& value, const Value* absent = nullptr) const;

 private:
  std::vector<Value> keys_;
};

// One path for each part of "a,b.c"; a single one for everything but strings.
std::vector<AttributePath> ParseAttributePaths(Runtime& runtime, const Value& paths);

}  // namespace adder::text::jinja
