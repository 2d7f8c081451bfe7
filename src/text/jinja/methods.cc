#include "text/jinja/methods.h"

#include <algorithm>
#include <cmath>

#include "text/jinja/arguments.h"
#include "text/jinja/iteration.h"
#include "text/jinja/loop.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace adder::text::jinja {
namespace {

constexpr auto kByPosition = ArgumentReader::Passing::kByPosition;

class BoundMethod : public CallableObject {
 public:
  BoundMethod(const Value& self, std::string_view name, MethodFunction function)
      : self_(self), name_(name), function_(function) {
    depth = self.depth() + 1;
  }
  Value Call(Runtime& runtime, Arguments arguments) override {
    return function_(runtime, self_, arguments);
  }
  std::string Describe() const override {
    return Concat("built-in method ", name_, " of ", TypeName(self_), " object");
  }

 private:
  const Value self_;
  const std::string_view name_;
  const MethodFunction function_;
};

struct NamedMethod {
  std::string_view name;
  MethodFunction function;
};

// --- list and tuple

Value ListCount(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "count", arguments, {"value"}, 1, kByPosition);
  const auto& items = self.list().items;
  runtime.Step(items.size());
  return Value::Int(std::count_if(items.begin(), items.end(),
                                  [&](const Value& item) { return Equals(item, *reader.Get(0)); }));
}

Value ListIndex(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "index", arguments, {"value", "start", "stop"}, 1,
                              kByPosition);
  const auto& items = self.list().items;
  const auto size = static_cast<int64_t>(items.size());
  const auto bound = [size](int64_t index) {
    return std::clamp<int64_t>(index < 0 ? std::max(index, -size) + size : index, 0, size);
  };
  const int64_t stop = bound(reader.Int(2, size));
  for (int64_t i = bound(reader.Int(1, 0)); i < stop; ++i) {
    runtime.Step();
    if (Equals(items[static_cast<size_t>(i)], *reader.Get(0))) return Value::Int(i);
  }
  runtime.Fail("index: the value ", Repr(runtime, *reader.Get(0)), " is not in the list.");
}

Value ListCopy(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "copy", arguments, {});
  return runtime.List(self.list().items);
}

constexpr NamedMethod kListMethods[] = {
    {"count", ListCount}, {"index", ListIndex}, {"copy", ListCopy}};
constexpr NamedMethod kTupleMethods[] = {{"count", ListCount}, {"index", ListIndex}};
constexpr std::string_view kListMutators[] = {"append", "clear", "pop",    "reverse",
                                              "insert", "sort",  "extend", "remove"};

// --- dict

Value MakeView(Runtime& runtime, const Value& self, const Arguments& arguments,
               DictViewObject::Part part) {
  const ArgumentReader reader(runtime, "a view of a dict", arguments, {});
  auto view = std::make_shared<DictViewObject>();
  view->dict = self;
  view->part = part;
  view->depth = self.depth();
  runtime.Register(*view, 0);
  return Value::Of(Kind::kDictView, std::move(view));
}

Value DictItems(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MakeView(runtime, self, arguments, DictViewObject::Part::kItems);
}
Value DictKeys(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MakeView(runtime, self, arguments, DictViewObject::Part::kKeys);
}
Value DictValues(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return MakeView(runtime, self, arguments, DictViewObject::Part::kValues);
}

Value DictGet(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "get", arguments, {"key", "default"}, 1, kByPosition);
  if (!IsHashable(*reader.Get(0))) {
    runtime.Fail("get: a value of type ", TypeName(*reader.Get(0)), " cannot be a key of a dict.");
  }
  const Value* found = self.dict().Find(*reader.Get(0));
  return found != nullptr ? *found : reader.Get(1, Value::None());
}

Value DictCopy(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "copy", arguments, {});
  auto copy = std::make_shared<DictObject>();
  for (const auto& [key, value] : self.dict().items) copy->Set(key, value);
  return runtime.Dict(std::move(copy));
}

constexpr NamedMethod kDictMethods[] = {{"items", DictItems},
                                        {"keys", DictKeys},
                                        {"values", DictValues},
                                        {"get", DictGet},
                                        {"copy", DictCopy}};
constexpr std::string_view kDictMutators[] = {"clear", "pop", "popitem", "setdefault", "update"};

// --- numbers, ranges

Value IntBitLength(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "bit_length", arguments, {});
  const int64_t value = self.integer();
  uint64_t magnitude = value < 0 ? 0 - static_cast<uint64_t>(value) : static_cast<uint64_t>(value);
  int64_t bits = 0;
  for (; magnitude != 0; magnitude >>= 1) ++bits;
  return Value::Int(bits);
}

Value FloatIsInteger(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "is_integer", arguments, {});
  return Value::Bool(std::isfinite(self.number()) && std::trunc(self.number()) == self.number());
}

constexpr NamedMethod kIntMethods[] = {{"bit_length", IntBitLength}};
constexpr NamedMethod kFloatMethods[] = {{"is_integer", FloatIsInteger}};

// --- cycler

Value CyclerNext(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "next", arguments, {});
  CyclerObject& cycler = self.cycler();
  const Value item = cycler.items[cycler.position];
  cycler.position = (cycler.position + 1) % cycler.items.size();
  return item;
}

Value CyclerReset(Runtime& runtime, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "reset", arguments, {});
  self.cycler().position = 0;
  return Value::None();
}

constexpr NamedMethod kCyclerMethods[] = {{"next", CyclerNext}, {"reset", CyclerReset}};

template <size_t kCount>
Value FindMethod(Runtime& runtime, const Value& self, std::string_view name,
                 const NamedMethod (&methods)[kCount]) {
  for (const NamedMethod& method : methods) {
    if (method.name == name) return BindMethod(runtime, self, method.name, method.function);
  }
  return {};
}

template <size_t kCount>
Value FindMutator(Runtime& runtime, const Value& self, std::string_view name,
                  const std::string_view (&mutators)[kCount]) {
  if (std::find(std::begin(mutators), std::end(mutators), name) == std::end(mutators)) return {};
  return runtime.Undefined(Concat("access to attribute '", name, "' of '", TypeName(self),
                                  "' object is unsafe: values cannot be changed"));
}

}  // namespace

Value BindMethod(Runtime& runtime, const Value& self, std::string_view name,
                 MethodFunction function) {
  return runtime.Callable(std::make_shared<BoundMethod>(self, name, function));
}

Value FindAttribute(Runtime& runtime, const Value& object, const std::string& name) {
  switch (object.kind()) {
    case Kind::kString: {
      const MethodFunction function = FindStringMethod(name);
      // A bound method refers to a name that lives as long as the program.
      return function == nullptr ? Value() : BindMethod(runtime, object, "str", function);
    }
    case Kind::kList: {
      Value method = FindMethod(runtime, object, name, kListMethods);
      return method.Is(Kind::kMissing) ? FindMutator(runtime, object, name, kListMutators) : method;
    }
    case Kind::kTuple:
      if (object.list().group && name == "grouper") return object.list().items[0];
      if (object.list().group && name == "list") return object.list().items[1];
      return FindMethod(runtime, object, name, kTupleMethods);
    case Kind::kDict: {
      Value method = FindMethod(runtime, object, name, kDictMethods);
      return method.Is(Kind::kMissing) ? FindMutator(runtime, object, name, kDictMutators) : method;
    }
    case Kind::kBool:
    case Kind::kInt:
      if (name == "real" || name == "numerator") return Value::Int(object.integer());
      if (name == "imag") return Value::Int(0);
      if (name == "denominator") return Value::Int(1);
      return FindMethod(runtime, object, name, kIntMethods);
    case Kind::kFloat:
      if (name == "real") return object;
      if (name == "imag") return Value::Float(0);
      return FindMethod(runtime, object, name, kFloatMethods);
    case Kind::kRange:
      if (name == "start") return Value::Int(object.range().start);
      if (name == "stop") return Value::Int(object.range().stop);
      if (name == "step") return Value::Int(object.range().step);
      return {};
    case Kind::kLoop:
      return object.loop().Attribute(runtime, name, object);
    case Kind::kCycler:
      if (name == "current") return object.cycler().items[object.cycler().position];
      return FindMethod(runtime, object, name, kCyclerMethods);
    case Kind::kCallable:
      return object.callable().Attribute(runtime, name);
    default:
      return {};
  }
}

}  // namespace adder::text::jinja
