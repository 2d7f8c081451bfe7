#include "text/jinja/iteration.h"

#include <utility>

#include "text/jinja/python_text.h"

namespace adder::text::jinja {
namespace {

class FunctionIterator : public IteratorObject {
 public:
  explicit FunctionIterator(std::function<bool(Runtime&, Value&)> next) : next_(std::move(next)) {}
  bool Next(Runtime& runtime, Value& element) override {
    runtime.Step();
    return next_(runtime, element);
  }

 private:
  std::function<bool(Runtime&, Value&)> next_;
};

// Elements 0, 1, ... of what `at` gives; `size` of them.
template <class At>
std::shared_ptr<IteratorObject> ByIndex(size_t size, At at) {
  return MakeIterator([size, at, i = size_t{0}](Runtime& runtime, Value& element) mutable {
    if (i == size) return false;
    element = at(runtime, i++);
    return true;
  });
}

std::shared_ptr<IteratorObject> Characters(const Value& string) {
  return MakeIterator([string, position = size_t{0}](Runtime& runtime, Value& element) mutable {
    const std::string_view rest = std::string_view(string.text()).substr(position);
    if (rest.empty()) return false;
    const size_t length = ByteOffset(rest, 1);
    element = runtime.String(std::string(rest.substr(0, length)));
    position += length;
    return true;
  });
}

}  // namespace

std::shared_ptr<IteratorObject> MakeIterator(std::function<bool(Runtime&, Value&)> next) {
  return std::make_shared<FunctionIterator>(std::move(next));
}

Value ViewItem(Runtime& runtime, const DictViewObject& view, size_t index) {
  const auto& [key, value] = view.dict.dict().items[index];
  switch (view.part) {
    case DictViewObject::Part::kKeys:
      return key;
    case DictViewObject::Part::kValues:
      return value;
    case DictViewObject::Part::kItems:
      break;
  }
  return runtime.Tuple({key, value});
}

bool IsIterable(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
    case Kind::kString:
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kDict:
    case Kind::kDictView:
    case Kind::kRange:
    case Kind::kIterator:
      return true;
    default:
      return false;
  }
}

std::shared_ptr<IteratorObject> Iterate(Runtime& runtime, const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return MakeIterator([](Runtime&, Value&) { return false; });
    case Kind::kString:
      return Characters(value);
    case Kind::kList:
    case Kind::kTuple:
      return ByIndex(value.list().items.size(),
                     [value](Runtime&, size_t i) { return value.list().items[i]; });
    case Kind::kDict:
      return ByIndex(value.dict().items.size(),
                     [value](Runtime&, size_t i) { return value.dict().items[i].first; });
    case Kind::kDictView:
      return ByIndex(value.view().dict.dict().items.size(),
                     [value](Runtime& run, size_t i) { return ViewItem(run, value.view(), i); });
    case Kind::kRange:
      return ByIndex(static_cast<size_t>(value.range().length), [value](Runtime&, size_t i) {
        return Value::Int(value.range().start + static_cast<int64_t>(i) * value.range().step);
      });
    case Kind::kIterator:
      return std::static_pointer_cast<IteratorObject>(value.object());
    default:
      runtime.Fail("A value of type ", TypeName(value), " has no elements to go through.");
  }
}

std::vector<Value> ToVector(Runtime& runtime, const Value& value) {
  if (value.IsListOrTuple()) {
    runtime.StepItems(value.list().items.size());
    return value.list().items;
  }
  std::vector<Value> items;
  const auto iterator = Iterate(runtime, value);
  Value item;
  while (iterator->Next(runtime, item)) items.push_back(std::move(item));
  return items;
}

std::optional<int64_t> Length(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<int64_t>(value.string().length);
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<int64_t>(value.list().items.size());
    case Kind::kDict:
      return static_cast<int64_t>(value.dict().items.size());
    case Kind::kDictView:
      return static_cast<int64_t>(value.view().dict.dict().items.size());
    case Kind::kRange:
      return value.range().length;
    default:
      return std::nullopt;
  }
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    default:
      return Length(value).value_or(1) != 0;
  }
}

}  // namespace adder::text::jinja
