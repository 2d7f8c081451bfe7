#include "text/jinja/operators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "text/jinja/format.h"
#include "text/jinja/iteration.h"
#include "text/jinja/methods.h"
#include "text/jinja/print.h"
#include "text/jinja/python_text.h"

namespace adder::text::jinja {
namespace {

std::string_view OperatorText(BinaryOperator op) {
  switch (op) {
    case BinaryOperator::kAdd:
      return "+";
    case BinaryOperator::kSubtract:
      return "-";
    case BinaryOperator::kMultiply:
      return "*";
    case BinaryOperator::kDivide:
      return "/";
    case BinaryOperator::kFloorDivide:
      return "//";
    case BinaryOperator::kModulo:
      return "%";
    case BinaryOperator::kPower:
      return "**";
    case BinaryOperator::kAnd:
      return "and";
    case BinaryOperator::kOr:
      return "or";
  }
  return "";
}

[[noreturn]] void FailTypes(Runtime& runtime, BinaryOperator op, const Value& left,
                            const Value& right) {
  runtime.Fail("The operator ", OperatorText(op), " does not work on ", TypeName(left), " and ",
               TypeName(right), ".");
}

[[noreturn]] void FailOverflow(Runtime& runtime) {
  runtime.Fail("The result is an integer that does not fit in 64 bits.");
}

[[noreturn]] void FailZero(Runtime& runtime) { runtime.Fail("A number is divided by zero."); }

Value CheckedPower(Runtime& runtime, int64_t base, int64_t exponent) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) FailOverflow(runtime);
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) FailOverflow(runtime);
  }
  return Value::Int(result);
}

Value Power(Runtime& runtime, const Value& left, const Value& right) {
  if (left.IsInteger() && right.IsInteger() && right.integer() >= 0) {
    return CheckedPower(runtime, left.integer(), right.integer());
  }
  const double base = left.number();
  const double exponent = right.number();
  if (base == 0 && exponent < 0) FailZero(runtime);
  if (base < 0 && std::isfinite(exponent) && std::trunc(exponent) != exponent &&
      std::isfinite(base)) {
    runtime.Fail("A negative number to a fractional power is not a real number.");
  }
  const double result = std::pow(base, exponent);
  if (std::isinf(result) && std::isfinite(base) && std::isfinite(exponent)) {
    runtime.Fail("The result of ** is too large for a floating number.");
  }
  return Value::Float(result);
}

// Python rounds down, and the remainder has the divisor's sign.
Value IntegerArithmetic(Runtime& runtime, BinaryOperator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case BinaryOperator::kAdd:
      if (__builtin_add_overflow(a, b, &result)) FailOverflow(runtime);
      return Value::Int(result);
    case BinaryOperator::kSubtract:
      if (__builtin_sub_overflow(a, b, &result)) FailOverflow(runtime);
      return Value::Int(result);
    case BinaryOperator::kMultiply:
      if (__builtin_mul_overflow(a, b, &result)) FailOverflow(runtime);
      return Value::Int(result);
    default:
      break;
  }
  if (b == 0) FailZero(runtime);
  if (op == BinaryOperator::kDivide) {
    // A long double holds every 64-bit integer, so there is one rounding.
    return Value::Float(static_cast<double>(static_cast<long double>(a) / b));
  }
  if (b == -1) {
    if (op == BinaryOperator::kModulo) return Value::Int(0);
    if (a == std::numeric_limits<int64_t>::min()) FailOverflow(runtime);
    return Value::Int(-a);
  }
  int64_t quotient = a / b;
  int64_t remainder = a % b;
  if (remainder != 0 && (remainder < 0) != (b < 0)) {
    --quotient;
    remainder += b;
  }
  return Value::Int(op == BinaryOperator::kFloorDivide ? quotient : remainder);
}

Value FloatArithmetic(Runtime& runtime, BinaryOperator op, double a, double b) {
  switch (op) {
    case BinaryOperator::kAdd:
      return Value::Float(a + b);
    case BinaryOperator::kSubtract:
      return Value::Float(a - b);
    case BinaryOperator::kMultiply:
      return Value::Float(a * b);
    default:
      break;
  }
  if (b == 0) FailZero(runtime);
  if (op == BinaryOperator::kDivide) return Value::Float(a / b);
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (op == BinaryOperator::kModulo) return Value::Float(remainder);
  if (quotient == 0) return Value::Float(std::copysign(0.0, a / b));
  double floored = std::floor(quotient);
  if (quotient - floored > 0.5) floored += 1;
  return Value::Float(floored);
}

// text * count or list * count.
Value Repeat(Runtime& runtime, const Value& sequence, int64_t count) {
  const auto times = static_cast<size_t>(std::max<int64_t>(count, 0));
  const auto check = [&](size_t size, size_t bytes_each) {
    if (size != 0 && times > (size_t{1} << 40) / size) runtime.CheckText(SIZE_MAX);
    runtime.CheckText(size * times * bytes_each);
  };
  if (sequence.Is(Kind::kString)) {
    const std::string& text = sequence.text();
    check(text.size(), 1);
    std::string repeated;
    repeated.reserve(text.size() * times);
    if (!text.empty()) {
      for (size_t i = 0; i < times; ++i) repeated += text;
    }
    return runtime.String(std::move(repeated), sequence.string().safe);
  }
  const auto& items = sequence.list().items;
  check(items.size(), sizeof(Value));
  runtime.StepItems(items.size() * times);
  std::vector<Value> repeated;
  repeated.reserve(items.size() * times);
  if (!items.empty()) {
    for (size_t i = 0; i < times; ++i) {
      repeated.insert(repeated.end(), items.begin(), items.end());
    }
  }
  return sequence.Is(Kind::kList) ? runtime.List(std::move(repeated))
                                  : runtime.Tuple(std::move(repeated));
}

Value AddSequences(Runtime& runtime, const Value& left, const Value& right) {
  if (left.Is(Kind::kString)) {
    const bool safe = left.string().safe || right.string().safe;
    const auto escaped = [&](const Value& value) {
      return safe && !value.string().safe ? EscapeHtml(value.text()) : value.text();
    };
    runtime.CheckText(left.text().size() + right.text().size());
    if (safe) return runtime.String(escaped(left) + escaped(right), true);
    std::string joined;
    joined.reserve(left.text().size() + right.text().size());
    joined += left.text();
    joined += right.text();
    return runtime.String(std::move(joined));
  }
  std::vector<Value> items;
  items.reserve(left.list().items.size() + right.list().items.size());
  items.insert(items.end(), left.list().items.begin(), left.list().items.end());
  items.insert(items.end(), right.list().items.begin(), right.list().items.end());
  return left.Is(Kind::kList) ? runtime.List(std::move(items)) : runtime.Tuple(std::move(items));
}

// Less, equal or greater as -1, 0, 1; nothing where a NaN takes part.
std::optional<int> CompareNumbers(const Value& a, const Value& b) {
  if (a.IsInteger() && b.IsInteger()) {
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  }
  // A long double holds every 64-bit integer and every double.
  const auto wide = [](const Value& value) {
    return value.IsInteger() ? static_cast<long double>(value.integer())
                             : static_cast<long double>(value.number());
  };
  if (wide(a) < wide(b)) return -1;
  if (wide(a) > wide(b)) return 1;
  if (wide(a) == wide(b)) return 0;
  return std::nullopt;
}

std::string_view ComparisonText(Comparison comparison) {
  switch (comparison) {
    case Comparison::kLess:
      return "<";
    case Comparison::kLessEqual:
      return "<=";
    case Comparison::kGreater:
      return ">";
    default:
      return ">=";
  }
}

bool Ordered(Comparison comparison, int order) {
  switch (comparison) {
    case Comparison::kLess:
      return order < 0;
    case Comparison::kLessEqual:
      return order <= 0;
    case Comparison::kGreater:
      return order > 0;
    default:
      return order >= 0;
  }
}

bool CompareOrder(Runtime& runtime, Comparison comparison, const Value& left, const Value& right) {
  runtime.Step();
  RequireDefined(runtime, left);
  RequireDefined(runtime, right);
  if (left.IsNumber() && right.IsNumber()) {
    const auto order = CompareNumbers(left, right);
    return order && Ordered(comparison, *order);
  }
  if (left.Is(Kind::kString) && right.Is(Kind::kString)) {
    // The order of UTF-8 is that of code points.
    runtime.StepBytes(std::min(left.text().size(), right.text().size()));
    return Ordered(comparison, left.text().compare(right.text()));
  }
  if (left.IsListOrTuple() && left.kind() == right.kind()) {
    const auto& a = left.list().items;
    const auto& b = right.list().items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      runtime.Step();
      if (!Equals(a[i], b[i])) return CompareOrder(runtime, comparison, a[i], b[i]);
    }
    return Ordered(comparison, a.size() < b.size() ? -1 : a.size() > b.size() ? 1 : 0);
  }
  runtime.Fail("The operator ", ComparisonText(comparison), " does not work on ", TypeName(left),
               " and ", TypeName(right), ".");
}

std::string ObjectDescription(const Value& object) {
  return object.Is(Kind::kNone) ? "None" : Concat(TypeName(object), " object");
}

// The element at an index, which may count from the end, or kMissing.
Value ElementAt(Runtime& runtime, const Value& object, int64_t index) {
  const int64_t length = Length(object).value_or(0);
  if (index < 0) index += length;
  if (index < 0 || index >= length) return {};
  switch (object.kind()) {
    case Kind::kList:
    case Kind::kTuple:
      return object.list().items[static_cast<size_t>(index)];
    case Kind::kRange:
      return Value::Int(object.range().start + index * object.range().step);
    default:
      break;
  }
  const std::string_view text = object.text();
  auto begin = static_cast<size_t>(index);
  if (!object.string().ascii()) {
    runtime.StepBytes(text.size());
    begin = ByteOffset(text, begin);
  }
  const size_t size = ByteOffset(text.substr(begin), 1);
  return runtime.String(std::string(text.substr(begin, size)), object.string().safe);
}

// The start, step and number of the elements that a slice takes of `length`.
struct SliceRange {
  int64_t start;
  int64_t step;
  int64_t count;
};
SliceRange ResolveSlice(Runtime& runtime, int64_t length, const Value& start, const Value& stop,
                        const Value& step) {
  const auto part = [&runtime](const Value& value, int64_t absent) {
    if (value.Is(Kind::kNone)) return absent;
    RequireDefined(runtime, value);
    if (!value.IsInteger()) {
      runtime.Fail("The parts of a slice must be integers, not ", TypeName(value), ".");
    }
    return value.integer();
  };
  const int64_t by = part(step, 1);
  if (by == 0) runtime.Fail("The step of a slice cannot be 0.");
  const int64_t lowest = by < 0 ? -1 : 0;
  const int64_t highest = by < 0 ? length - 1 : length;
  const auto clamp = [&](int64_t index) {
    if (index < 0) index = std::max(index, -length - 1) + length;
    return std::clamp(index, lowest, highest);
  };
  const int64_t from = start.Is(Kind::kNone) ? (by < 0 ? highest : lowest) : clamp(part(start, 0));
  const int64_t to = stop.Is(Kind::kNone) ? (by < 0 ? lowest : highest) : clamp(part(stop, 0));
  // As unsigned numbers, since -by can overflow.
  uint64_t count = 0;
  if (by > 0 && from < to) {
    count = (static_cast<uint64_t>(to - from) - 1) / static_cast<uint64_t>(by) + 1;
  } else if (by < 0 && to < from) {
    count = (static_cast<uint64_t>(from - to) - 1) / (0 - static_cast<uint64_t>(by)) + 1;
  }
  return {from, by, static_cast<int64_t>(count)};
}

Value SliceString(Runtime& runtime, const Value& string, const SliceRange& slice) {
  const std::string_view text = string.text();
  const bool safe = string.string().safe;
  const auto start = static_cast<size_t>(std::max<int64_t>(slice.start, 0));
  const auto count = static_cast<size_t>(slice.count);
  if (count == 0) return runtime.String("", safe);
  if (!string.string().ascii()) runtime.StepBytes(text.size());
  if (slice.step == 1) {
    if (string.string().ascii()) {
      return runtime.String(std::string(text.substr(start, count)), safe);
    }
    const size_t begin = ByteOffset(text, start);
    const size_t size = ByteOffset(text.substr(begin), count);
    return runtime.String(std::string(text.substr(begin, size)), safe);
  }
  // Where each character begins, one more at the end.
  std::vector<size_t> offsets;
  offsets.reserve(string.string().length + 1);
  for (size_t i = 0; i < text.size(); i += ByteOffset(text.substr(i), 1)) offsets.push_back(i);
  offsets.push_back(text.size());
  std::string taken;
  for (size_t i = 0; i < count; ++i) {
    const auto at = static_cast<size_t>(slice.start + static_cast<int64_t>(i) * slice.step);
    taken += text.substr(offsets[at], offsets[at + 1] - offsets[at]);
  }
  return runtime.String(std::move(taken), safe);
}

}  // namespace

void RequireDefined(Runtime& runtime, const Value& value) {
  if (value.IsUndefined()) runtime.FailUndefined(value);
}

Value ApplyBinary(Runtime& runtime, BinaryOperator op, const Value& left, const Value& right) {
  if (op == BinaryOperator::kModulo && left.Is(Kind::kString)) {
    return FormatPercent(runtime, left, right);
  }
  RequireDefined(runtime, left);
  RequireDefined(runtime, right);
  if (left.IsNumber() && right.IsNumber()) {
    if (op == BinaryOperator::kPower) return Power(runtime, left, right);
    if (left.IsInteger() && right.IsInteger()) {
      return IntegerArithmetic(runtime, op, left.integer(), right.integer());
    }
    return FloatArithmetic(runtime, op, left.number(), right.number());
  }
  const auto is_sequence = [](const Value& value) {
    return value.Is(Kind::kString) || value.IsListOrTuple();
  };
  if (op == BinaryOperator::kAdd && is_sequence(left) && left.kind() == right.kind()) {
    return AddSequences(runtime, left, right);
  }
  if (op == BinaryOperator::kMultiply) {
    if (is_sequence(left) && right.IsInteger()) return Repeat(runtime, left, right.integer());
    if (is_sequence(right) && left.IsInteger()) return Repeat(runtime, right, left.integer());
  }
  FailTypes(runtime, op, left, right);
}

Value ApplyUnary(Runtime& runtime, UnaryOperator op, const Value& operand) {
  if (op == UnaryOperator::kNot) return Value::Bool(!IsTrue(operand));
  RequireDefined(runtime, operand);
  if (!operand.IsNumber()) {
    runtime.Fail("The operator ", op == UnaryOperator::kNegative ? "-" : "+", " does not work on ",
                 TypeName(operand), ".");
  }
  if (operand.Is(Kind::kFloat)) {
    return Value::Float(op == UnaryOperator::kNegative ? -operand.number() : operand.number());
  }
  if (op == UnaryOperator::kPositive) return Value::Int(operand.integer());
  if (operand.integer() == std::numeric_limits<int64_t>::min()) FailOverflow(runtime);
  return Value::Int(-operand.integer());
}

bool IsLess(Runtime& runtime, const Value& left, const Value& right) {
  return CompareOrder(runtime, Comparison::kLess, left, right);
}

bool Compare(Runtime& runtime, Comparison comparison, const Value& left, const Value& right) {
  // Equals counts the steps of what the rendering made, but literals belong to the template.
  if (left.Is(Kind::kString)) runtime.StepBytes(left.text().size());
  switch (comparison) {
    case Comparison::kEqual:
      return Equals(left, right);
    case Comparison::kNotEqual:
      return !Equals(left, right);
    case Comparison::kIn:
      return Contains(runtime, right, left);
    case Comparison::kNotIn:
      return !Contains(runtime, right, left);
    default:
      return CompareOrder(runtime, comparison, left, right);
  }
}

bool Contains(Runtime& runtime, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.Is(Kind::kString)) {
        runtime.Fail("\"in\" looks for a string in a string, not for ", TypeName(item), ".");
      }
      runtime.StepBytes(container.text().size());
      return FindFirst(container.text(), item.text()) != std::string_view::npos;
    case Kind::kDict:
      if (!IsHashable(item)) {
        runtime.Fail("A value of type ", TypeName(item), " cannot be a key of a dict.");
      }
      return container.dict().Find(item) != nullptr;
    case Kind::kRange: {
      const RangeObject& range = container.range();
      for (int64_t i = 0; i < range.length; ++i) {
        runtime.Step();
        if (Equals(Value::Int(range.start + i * range.step), item)) return true;
      }
      return false;
    }
    default: {
      const auto iterator = Iterate(runtime, container);
      Value element;
      while (iterator->Next(runtime, element)) {
        if (Equals(element, item)) return true;
      }
      return false;
    }
  }
}

Value GetAttribute(Runtime& runtime, const Value& object, const std::string& name) {
  RequireDefined(runtime, object);
  if (object.Is(Kind::kNamespace)) {
    if (const Value* found = object.name_space().Find(name)) return *found;
  } else {
    Value attribute = FindAttribute(runtime, object, name);
    if (!attribute.Is(Kind::kMissing)) return attribute;
    if (object.Is(Kind::kDict)) {
      if (const Value* found = object.dict().Find(name)) return *found;
    }
  }
  return runtime.Undefined(
      Concat("'", ObjectDescription(object), "' has no attribute ", StringRepr(name)));
}

Value GetElement(Runtime& runtime, const Value& object, const Value& key) {
  RequireDefined(runtime, object);
  if (object.Is(Kind::kDict)) {
    const Value* found = IsHashable(key) ? object.dict().Find(key) : nullptr;
    if (found != nullptr) return *found;
  } else if (key.IsInteger() &&
             (object.IsListOrTuple() || object.Is(Kind::kString) || object.Is(Kind::kRange))) {
    Value element = ElementAt(runtime, object, key.integer());
    if (!element.Is(Kind::kMissing)) return element;
  }
  if (!key.Is(Kind::kString)) {
    return runtime.Undefined(
        Concat(ObjectDescription(object), " has no element ", Repr(runtime, key)));
  }
  if (object.Is(Kind::kNamespace)) return GetAttribute(runtime, object, key.text());
  Value attribute = FindAttribute(runtime, object, key.text());
  if (!attribute.Is(Kind::kMissing)) return attribute;
  return runtime.Undefined(
      Concat("'", ObjectDescription(object), "' has no attribute ", StringRepr(key.text())));
}

Value GetSlice(Runtime& runtime, const Value& object, const Value& start, const Value& stop,
               const Value& step) {
  RequireDefined(runtime, object);
  if (!object.IsListOrTuple() && !object.Is(Kind::kString) && !object.Is(Kind::kRange)) {
    runtime.Fail("A value of type ", TypeName(object), " cannot be sliced.");
  }
  const SliceRange slice = ResolveSlice(runtime, Length(object).value_or(0), start, stop, step);
  if (object.Is(Kind::kString)) return SliceString(runtime, object, slice);
  if (object.Is(Kind::kRange)) {
    const RangeObject& range = object.range();
    auto part = std::make_shared<RangeObject>();
    // Only ranges of at most 100,000 elements exist, but their steps may be large.
    const auto at = [&](int64_t index, int64_t& value) {
      return __builtin_mul_overflow(index, range.step, &value) ||
             __builtin_add_overflow(value, range.start, &value);
    };
    int64_t end = 0;
    if (__builtin_mul_overflow(slice.count, slice.step, &end) ||
        __builtin_add_overflow(end, slice.start, &end) || at(slice.start, part->start) ||
        at(end, part->stop) || __builtin_mul_overflow(range.step, slice.step, &part->step)) {
      FailOverflow(runtime);
    }
    part->length = slice.count;
    runtime.Register(*part, 0);
    return Value::Of(Kind::kRange, std::move(part));
  }
  std::vector<Value> items;
  items.reserve(static_cast<size_t>(slice.count));
  for (int64_t i = 0; i < slice.count; ++i) {
    items.push_back(object.list().items[static_cast<size_t>(slice.start + i * slice.step)]);
  }
  return object.Is(Kind::kList) ? runtime.List(std::move(items)) : runtime.Tuple(std::move(items));
}

}  // namespace adder::text::jinja
