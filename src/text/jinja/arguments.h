// Reads the arguments of a function, filter or method by parameter, as Python binds them.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/runtime.h"

namespace adder::text::jinja {

class ArgumentReader {
 public:
  enum class Passing { kByName, kByPosition };

  // Binds `arguments` to `parameters`, of which the first `required` must be given. Throws Error,
  // naming `function`, for too many, unknown and missing ones. With kByPosition, names are unknown.
  ArgumentReader(Runtime& runtime, std::string_view function, const Arguments& arguments,
                 std::initializer_list<std::string_view> parameters, size_t required = 0,
                 Passing passing = Passing::kByName);

  // Null when not given.
  const Value* Get(size_t parameter) const { return values_[parameter]; }
  // Null when not given or None.
  const Value* GetSome(size_t parameter) const {
    const Value* value = values_[parameter];
    return value == nullptr || value->Is(Kind::kNone) ? nullptr : value;
  }
  Value Get(size_t parameter, Value absent) const {
    return values_[parameter] == nullptr ? std::move(absent) : *values_[parameter];
  }

  // Each throws Error when the argument is of another type.
  int64_t Int(size_t parameter, int64_t absent = 0) const;
  // The truth value of whatever is given.
  bool Bool(size_t parameter, bool absent = false) const;
  std::string Text(size_t parameter, std::string_view absent = {}) const;

 private:
  [[noreturn]] void FailType(size_t parameter, std::string_view wanted) const;

  Runtime& runtime_;
  std::string function_;
  std::vector<std::string_view> parameters_;
  std::vector<const Value*> values_;
};

}  // namespace adder::text::jinja
