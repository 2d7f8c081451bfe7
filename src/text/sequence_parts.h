// The type Sequence of tokenizer.json, which every part of a tokenizer has.
#pragma once

#include <string_view>

#include "core/error.h"
#include "core/json.h"

namespace adder::text {

// Calls add(element, where) for the elements of the array `field`. Throws Error when it is none.
template <class Add>
void ForEachOfSequence(const JsonObject& object, std::string_view field, const Add& add) {
  const Json* list = object.Find({field});
  if (list == nullptr || !list->is_array()) {
    Fail(object.where(), ": the field ", field, " should be an array.");
  }
  for (size_t i = 0; i < list->size(); ++i) {
    add((*list)[i], Concat(object.where(), ".", field, "[", i, "]"));
  }
}

}  // namespace adder::text
