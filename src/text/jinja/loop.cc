#include "text/jinja/loop.h"

#include <algorithm>
#include <utility>

#include "text/jinja/iteration.h"
#include "text/jinja/methods.h"

namespace adder::text::jinja {
namespace {

Value CallCycle(Runtime& runtime, const Value& self, const Arguments& arguments) {
  return self.loop().Cycle(runtime, arguments);
}

Value CallChanged(Runtime&, const Value& self, const Arguments& arguments) {
  return Value::Bool(self.loop().Changed(arguments.positional));
}

}  // namespace

LoopObject& Value::loop() const { return static_cast<LoopObject&>(*object_); }

LoopObject::LoopObject(std::shared_ptr<IteratorObject> iterator, std::optional<int64_t> length,
                       Recurse recurse, int depth0)
    : iterator_(std::move(iterator)),
      length_(length),
      recurse_(std::move(recurse)),
      depth0_(depth0) {}

bool LoopObject::Next(Runtime& runtime, Value& element) {
  if (!after_.Is(Kind::kMissing)) {
    element = std::exchange(after_, Value());
  } else if (ended_ || !iterator_->Next(runtime, element)) {
    return false;
  }
  ++index0_;
  before_ = std::exchange(current_, element);
  return true;
}

const Value& LoopObject::PeekNext(Runtime& runtime) {
  if (after_.Is(Kind::kMissing) && !ended_ && !iterator_->Next(runtime, after_)) {
    ended_ = true;
    after_ = Value();
  }
  return after_;
}

int64_t LoopObject::Length(Runtime& runtime) {
  if (!length_) {
    const Value rest = runtime.List(ToVector(runtime, Value::Of(Kind::kIterator, iterator_)));
    iterator_ = Iterate(runtime, rest);
    length_ = static_cast<int64_t>(rest.list().items.size()) + index0_ + 1 +
              (after_.Is(Kind::kMissing) ? 0 : 1);
  }
  return *length_;
}

Value LoopObject::Attribute(Runtime& runtime, const std::string& name, const Value& self) {
  if (name == "index") return Value::Int(index0_ + 1);
  if (name == "index0") return Value::Int(index0_);
  if (name == "first") return Value::Bool(index0_ == 0);
  if (name == "last") return Value::Bool(PeekNext(runtime).Is(Kind::kMissing));
  if (name == "length") return Value::Int(Length(runtime));
  if (name == "revindex") return Value::Int(Length(runtime) - index0_);
  if (name == "revindex0") return Value::Int(Length(runtime) - index0_ - 1);
  if (name == "depth") return Value::Int(depth0_ + 1);
  if (name == "depth0") return Value::Int(depth0_);
  if (name == "previtem") {
    return before_.Is(Kind::kMissing) ? runtime.Undefined("there is no previous item") : before_;
  }
  if (name == "nextitem") {
    const Value& next = PeekNext(runtime);
    return next.Is(Kind::kMissing) ? runtime.Undefined("there is no next item") : next;
  }
  if (name == "cycle") return BindMethod(runtime, self, "cycle", CallCycle);
  if (name == "changed") return BindMethod(runtime, self, "changed", CallChanged);
  return {};
}

Value LoopObject::CallRecursively(Runtime& runtime, const Arguments& arguments) {
  if (!recurse_) {
    runtime.Fail("The loop can only be called when it is marked: {% for ... recursive %}.");
  }
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    runtime.Fail("loop() takes exactly one argument, what to go through.");
  }
  return recurse_(arguments.positional[0], depth0_ + 1);
}

Value LoopObject::Cycle(Runtime& runtime, const Arguments& arguments) const {
  if (arguments.positional.empty()) runtime.Fail("loop.cycle() needs at least one argument.");
  const auto count = static_cast<int64_t>(arguments.positional.size());
  return arguments.positional[static_cast<size_t>(std::max<int64_t>(index0_, 0) % count)];
}

bool LoopObject::Changed(const std::vector<Value>& values) {
  if (last_changed_ && std::equal(values.begin(), values.end(), last_changed_->begin(),
                                  last_changed_->end(), Equals)) {
    return false;
  }
  last_changed_ = values;
  return true;
}

std::string LoopObject::Describe(Runtime& runtime) {
  return Concat("<LoopContext ", index0_ + 1, "/", Length(runtime), ">");
}

void LoopObject::Release() {
  iterator_ = MakeIterator([](Runtime&, Value&) { return false; });
  recurse_ = nullptr;
  before_ = current_ = after_ = Value();
  last_changed_.reset();
}

}  // namespace adder::text::jinja
