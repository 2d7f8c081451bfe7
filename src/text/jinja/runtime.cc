#include "text/jinja/runtime.h"

#include <algorithm>

namespace adder::text::jinja {
namespace {

constexpr int kMaxValueDepth = 150;
constexpr size_t kObjectBytes = 64;  // what an object costs besides its contents, about

int MaxDepth(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth;
}

}  // namespace

Runtime::Runtime(const std::string& template_name, const Limits& limits,
                 std::function<std::tm()> clock)
    : template_name_(template_name),
      limits_(limits),
      clock_(std::move(clock)),
      steps_left_(limits.steps) {}

Runtime::~Runtime() {
  // First all references go, then the objects: otherwise one could destroy a long chain of others.
  for (const Kept& kept : kept_) kept.release();
}

void Runtime::FailUndefined(const Value& value) const { Fail(value.undefined().message, "."); }

void Runtime::FailSteps() const {
  Fail("The template takes more than ", limits_.steps, " steps; it may run without end.");
}

void Runtime::FailDepth() const {
  Fail("Calls and blocks are nested deeper than ", limits_.call_depth,
       " levels; a macro may call itself without end.");
}

void Runtime::CheckText(size_t bytes) const {
  if (bytes > limits_.text_bytes) {
    Fail("A text would have ", bytes, " bytes, more than the limit of ", limits_.text_bytes, ".");
  }
}

void Runtime::Register(Object& object, size_t bytes) {
  object.ChargeTo(memory_, kObjectBytes + bytes);
  if (memory_.live > limits_.memory_bytes) {
    Fail("The values of the template need more than the limit of ", limits_.memory_bytes,
         " bytes.");
  }
  if (object.depth > kMaxValueDepth) {
    Fail("Values are nested deeper than ", kMaxValueDepth, " levels.");
  }
}

Value Runtime::String(std::string text, bool safe) {
  CheckText(text.size());
  StepBytes(text.size());
  auto string = std::make_shared<StringObject>(std::move(text), safe);
  Register(*string, string->text.capacity());
  return Value::Of(Kind::kString, std::move(string));
}

Value Runtime::Sequence(Kind kind, std::vector<Value> items) {
  StepItems(items.size());
  auto list = std::make_shared<ListObject>();
  list->depth = 1 + MaxDepth(items);
  list->items = std::move(items);
  Register(*list, list->items.capacity() * sizeof(Value));
  return Value::Of(kind, std::move(list));
}

Value Runtime::Group(Value grouper, Value list) {
  auto group = std::make_shared<ListObject>();
  group->depth = 1 + std::max(grouper.depth(), list.depth());
  group->items = {std::move(grouper), std::move(list)};
  group->group = true;
  Register(*group, 2 * sizeof(Value));
  return Value::Of(Kind::kTuple, std::move(group));
}

Value Runtime::Dict(std::shared_ptr<DictObject> dict) {
  StepItems(dict->items.size());
  // An item also has an entry in the index.
  Register(*dict, dict->items.size() * (2 * sizeof(Value) + 32));
  return Value::Of(Kind::kDict, std::move(dict));
}

Value Runtime::Undefined(std::string message) {
  auto undefined = std::make_shared<UndefinedObject>();
  undefined->message = std::move(message);
  Register(*undefined, undefined->message.capacity());
  return Value::Of(Kind::kUndefined, std::move(undefined));
}

Value Runtime::Iterator(std::shared_ptr<IteratorObject> iterator, int depth) {
  iterator->depth = 1 + depth;
  Register(*iterator, 64);
  return Value::Of(Kind::kIterator, std::move(iterator));
}

Value Runtime::Callable(std::shared_ptr<CallableObject> callable) {
  Register(*callable, 64);
  return Value::Of(Kind::kCallable, std::move(callable));
}

Value Runtime::Namespace() {
  auto name_space = std::make_shared<NamespaceObject>();
  Register(*name_space, 256);
  KeepUntilEnd(name_space, [object = name_space.get()] { object->attributes.clear(); });
  return Value::Of(Kind::kNamespace, std::move(name_space));
}

Value Runtime::Cycler(std::vector<Value> items) {
  auto cycler = std::make_shared<CyclerObject>();
  cycler->depth = 1 + MaxDepth(items);
  cycler->items = std::move(items);
  Register(*cycler, cycler->items.capacity() * sizeof(Value));
  return Value::Of(Kind::kCycler, std::move(cycler));
}

void Runtime::KeepUntilEnd(std::shared_ptr<void> object, std::function<void()> release) {
  kept_.push_back({std::move(object), std::move(release)});
}

}  // namespace adder::text::jinja
