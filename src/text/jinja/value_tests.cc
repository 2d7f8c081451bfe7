#include "text/jinja/value_tests.h"

#include <algorithm>

#include "text/jinja/arguments.h"
#include "text/jinja/filters.h"
#include "text/jinja/iteration.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace adder::text::jinja {
namespace {

using TestFunction = bool (*)(Runtime& runtime, const Value& input, const Arguments& arguments);

template <bool (*kTest)(Runtime&, const Value&)>
bool Plain(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "a test", arguments, {});
  return kTest(runtime, input);
}

template <bool (*kTest)(Runtime&, const Value&, const Value&)>
bool WithOperand(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "a test", arguments, {"other"}, 1,
                              ArgumentReader::Passing::kByPosition);
  return kTest(runtime, input, *reader.Get(0));
}

template <Comparison kComparison>
bool Compares(Runtime& runtime, const Value& a, const Value& b) {
  return Compare(runtime, kComparison, a, b);
}

bool LeavesRemainder(Runtime& runtime, const Value& input, int64_t divisor, int64_t remainder) {
  const Value rest = ApplyBinary(runtime, BinaryOperator::kModulo, input, Value::Int(divisor));
  return Equals(rest, Value::Int(remainder));
}

bool IsDefined(Runtime&, const Value& value) { return !value.IsUndefined(); }
bool IsUndefined(Runtime&, const Value& value) { return value.IsUndefined(); }
bool IsNone(Runtime&, const Value& value) { return value.Is(Kind::kNone); }
bool IsBoolean(Runtime&, const Value& value) { return value.Is(Kind::kBool); }
bool IsTrueValue(Runtime&, const Value& value) {
  return value.Is(Kind::kBool) && value.bool_value();
}
bool IsFalseValue(Runtime&, const Value& value) {
  return value.Is(Kind::kBool) && !value.bool_value();
}
bool IsIntegerValue(Runtime&, const Value& value) { return value.Is(Kind::kInt); }
bool IsFloat(Runtime&, const Value& value) { return value.Is(Kind::kFloat); }
bool IsNumberValue(Runtime&, const Value& value) { return value.IsNumber(); }
bool IsString(Runtime&, const Value& value) { return value.Is(Kind::kString); }
bool IsMapping(Runtime&, const Value& value) { return value.Is(Kind::kDict); }
bool IsIterableValue(Runtime&, const Value& value) {
  return IsIterable(value) || value.Is(Kind::kLoop);
}
bool IsSequence(Runtime&, const Value& value) {
  // Whatever has a length and elements by index; views of dicts have no index, undefined ones do.
  return Length(value).has_value() && !value.Is(Kind::kDictView);
}
bool IsCallable(Runtime&, const Value& value) {
  // Something undefined can be called in Python's eyes: it fails then.
  return value.Is(Kind::kCallable) || value.Is(Kind::kLoop) || value.IsUndefined();
}
bool IsEscaped(Runtime&, const Value& value) {
  return value.Is(Kind::kString) && value.string().safe;
}
bool IsOdd(Runtime& runtime, const Value& value) { return LeavesRemainder(runtime, value, 2, 1); }
bool IsEven(Runtime& runtime, const Value& value) { return LeavesRemainder(runtime, value, 2, 0); }

bool HasCase(Runtime& runtime, const Value& value, std::string_view method) {
  const Value text = ApplyFilter(runtime, "string", value, {});
  return IsTrue(FindStringMethod(method)(runtime, text, {}));
}
bool IsLowerCase(Runtime& runtime, const Value& value) {
  return HasCase(runtime, value, "islower");
}
bool IsUpperCase(Runtime& runtime, const Value& value) {
  return HasCase(runtime, value, "isupper");
}

bool IsFilterName(Runtime&, const Value& value) {
  return value.Is(Kind::kString) && HasFilter(value.text());
}
bool IsTestName(Runtime&, const Value& value) {
  return value.Is(Kind::kString) && HasTest(value.text());
}

bool IsDivisibleBy(Runtime& runtime, const Value& value, const Value& divisor) {
  return Equals(ApplyBinary(runtime, BinaryOperator::kModulo, value, divisor), Value::Int(0));
}

bool IsSame(Runtime&, const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInt:
      return a.integer() == b.integer();
    case Kind::kFloat:
      return a.number() == b.number();
    default:
      return a.object() == b.object();
  }
}

struct NamedTest {
  std::string_view name;
  TestFunction function;
};

constexpr NamedTest kTests[] = {
    {"!=", WithOperand<Compares<Comparison::kNotEqual>>},
    {"<", WithOperand<Compares<Comparison::kLess>>},
    {"<=", WithOperand<Compares<Comparison::kLessEqual>>},
    {"==", WithOperand<Compares<Comparison::kEqual>>},
    {">", WithOperand<Compares<Comparison::kGreater>>},
    {">=", WithOperand<Compares<Comparison::kGreaterEqual>>},
    {"boolean", Plain<IsBoolean>},
    {"callable", Plain<IsCallable>},
    {"defined", Plain<IsDefined>},
    {"divisibleby", WithOperand<IsDivisibleBy>},
    {"eq", WithOperand<Compares<Comparison::kEqual>>},
    {"equalto", WithOperand<Compares<Comparison::kEqual>>},
    {"escaped", Plain<IsEscaped>},
    {"even", Plain<IsEven>},
    {"false", Plain<IsFalseValue>},
    {"filter", Plain<IsFilterName>},
    {"float", Plain<IsFloat>},
    {"ge", WithOperand<Compares<Comparison::kGreaterEqual>>},
    {"greaterthan", WithOperand<Compares<Comparison::kGreater>>},
    {"gt", WithOperand<Compares<Comparison::kGreater>>},
    {"in", WithOperand<Compares<Comparison::kIn>>},
    {"integer", Plain<IsIntegerValue>},
    {"iterable", Plain<IsIterableValue>},
    {"le", WithOperand<Compares<Comparison::kLessEqual>>},
    {"lessthan", WithOperand<Compares<Comparison::kLess>>},
    {"lower", Plain<IsLowerCase>},
    {"lt", WithOperand<Compares<Comparison::kLess>>},
    {"mapping", Plain<IsMapping>},
    {"ne", WithOperand<Compares<Comparison::kNotEqual>>},
    {"none", Plain<IsNone>},
    {"number", Plain<IsNumberValue>},
    {"odd", Plain<IsOdd>},
    {"sameas", WithOperand<IsSame>},
    {"sequence", Plain<IsSequence>},
    {"string", Plain<IsString>},
    {"test", Plain<IsTestName>},
    {"true", Plain<IsTrueValue>},
    {"undefined", Plain<IsUndefined>},
    {"upper", Plain<IsUpperCase>},
};

TestFunction FindTest(std::string_view name) {
  const auto* found =
      std::lower_bound(std::begin(kTests), std::end(kTests), name,
                       [](const NamedTest& test, std::string_view n) { return test.name < n; });
  return found != std::end(kTests) && found->name == name ? found->function : nullptr;
}

}  // namespace

bool HasTest(std::string_view name) { return FindTest(name) != nullptr; }

bool ApplyTest(Runtime& runtime, std::string_view name, const Value& input,
               const Arguments& arguments) {
  const TestFunction function = FindTest(name);
  if (function == nullptr) runtime.Fail("There is no test ", name, ".");
  return function(runtime, input, arguments);
}

}  // namespace adder::text::jinja
