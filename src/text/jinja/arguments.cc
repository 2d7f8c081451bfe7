#include "text/jinja/arguments.h"

#include <algorithm>

#include "text/jinja/operators.h"

namespace adder::text::jinja {

ArgumentReader::ArgumentReader(Runtime& runtime, std::string_view function,
                               const Arguments& arguments,
                               std::initializer_list<std::string_view> parameters, size_t required,
                               Passing passing)
    : runtime_(runtime),
      function_(function),
      parameters_(parameters),
      values_(parameters.size(), nullptr) {
  if (arguments.positional.size() > parameters_.size()) {
    runtime_.Fail(function_, " takes at most ", parameters_.size(), " arguments, not ",
                  arguments.positional.size(), ".");
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters_.begin(), parameters_.end(), name);
    if (found == parameters_.end() || passing == Passing::kByPosition) {
      runtime_.Fail(function_, " takes no argument named ", name, ".");
    }
    const Value*& bound = values_[static_cast<size_t>(found - parameters_.begin())];
    if (bound != nullptr) runtime_.Fail(function_, " got the argument ", name, " twice.");
    bound = &value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (values_[i] == nullptr) {
      runtime_.Fail(function_, " needs the argument ", parameters_[i], ".");
    }
  }
}

void ArgumentReader::FailType(size_t parameter, std::string_view wanted) const {
  RequireDefined(runtime_, *values_[parameter]);
  runtime_.Fail(function_, ": the argument ", parameters_[parameter], " should be ", wanted,
                ", not ", TypeName(*values_[parameter]), ".");
}

int64_t ArgumentReader::Int(size_t parameter, int64_t absent) const {
  const Value* value = values_[parameter];
  if (value == nullptr) return absent;
  if (!value->IsInteger()) FailType(parameter, "an integer");
  return value->integer();
}

bool ArgumentReader::Bool(size_t parameter, bool absent) const {
  const Value* value = values_[parameter];
  return value == nullptr ? absent : IsTrue(*value);
}

std::string ArgumentReader::Text(size_t parameter, std::string_view absent) const {
  const Value* value = values_[parameter];
  if (value == nullptr) return std::string(absent);
  if (!value->Is(Kind::kString)) FailType(parameter, "a string");
  return value->text();
}

}  // namespace adder::text::jinja
