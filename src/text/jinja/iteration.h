// Going through values.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

// Whether the value has elements to go through.
bool IsIterable(const Value& value);

// The elements of a list, tuple, range, view or iterator, the keys of a dict, the characters of a
// string; none of something undefined. Throws Error for values without elements.
std::shared_ptr<IteratorObject> Iterate(Runtime& runtime, const Value& value);

std::vector<Value> ToVector(Runtime& runtime, const Value& value);

// Python's len(), or nothing for values that have none.
std::optional<int64_t> Length(const Value& value);

// An iterator made of a function, which gives false at the end.
std::shared_ptr<IteratorObject> MakeIterator(std::function<bool(Runtime&, Value&)> next);

// The element of a dict view at `index`.
Value ViewItem(Runtime& runtime, const DictViewObject& view, size_t index);

}  // namespace adder::text::jinja
