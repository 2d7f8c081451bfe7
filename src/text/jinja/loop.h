// The variable `loop` of a for loop.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

class LoopObject : public Object {
 public:
  // Renders the loop once more, for the elements of a value, one level deeper.
  using Recurse = std::function<Value(const Value& iterable, int depth)>;

  // `length` is that of the iterable when it has one. `recurse` is empty for other loops.
  LoopObject(std::shared_ptr<IteratorObject> iterator, std::optional<int64_t> length,
             Recurse recurse, int depth0);

  // Moves on to the next element, or returns false at the end.
  bool Next(Runtime& runtime, Value& element);

  // An attribute (index, last, ...) or method (cycle, changed); kMissing for others.
  Value Attribute(Runtime& runtime, const std::string& name, const Value& self);

  // loop(iterable)
  Value CallRecursively(Runtime& runtime, const Arguments& arguments);
  Value Cycle(Runtime& runtime, const Arguments& arguments) const;
  bool Changed(const std::vector<Value>& values);

  std::string Describe(Runtime& runtime);
  // Drops all elements.
  void Release();

 private:
  // The next element without moving on, or kMissing at the end.
  const Value& PeekNext(Runtime& runtime);
  int64_t Length(Runtime& runtime);

  std::shared_ptr<IteratorObject> iterator_;
  std::optional<int64_t> length_;
  Recurse recurse_;
  int depth0_;
  int64_t index0_ = -1;
  bool ended_ = false;
  Value before_;
  Value current_;
  Value after_;
  std::optional<std::vector<Value>> last_changed_;
};

}  // namespace adder::text::jinja
