#include "text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "text/jinja/python_text.h"
#include "text/jinja/runtime.h"

namespace adder::text::jinja {
namespace {

constexpr size_t kIndexFrom = 9;  // items of a dict; fewer are searched one by one

bool EqualSequences(const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), Equals);
}

bool EqualDicts(const DictObject& a, const DictObject& b) {
  if (a.items.size() != b.items.size()) return false;
  return std::all_of(a.items.begin(), a.items.end(), [&b](const auto& item) {
    const Value* other = b.Find(item.first);
    return other != nullptr && Equals(item.second, *other);
  });
}

bool EqualRanges(const RangeObject& a, const RangeObject& b) {
  if (a.length != b.length) return false;
  if (a.length == 0) return true;
  return a.start == b.start && (a.length == 1 || a.step == b.step);
}

bool EqualViews(const DictViewObject& a, const DictViewObject& b) {
  // Views of values are only equal to themselves, the others compare as sets.
  if (a.part != b.part || a.part == DictViewObject::Part::kValues) return &a == &b;
  if (a.part == DictViewObject::Part::kItems) return EqualDicts(a.dict.dict(), b.dict.dict());
  const auto& items = a.dict.dict().items;
  return items.size() == b.dict.dict().items.size() &&
         std::all_of(items.begin(), items.end(),
                     [&b](const auto& item) { return b.dict.dict().Find(item.first) != nullptr; });
}

bool EqualNumbers(const Value& a, const Value& b) {
  if (a.IsInteger() && b.IsInteger()) return a.integer() == b.integer();
  if (a.Is(Kind::kFloat) && b.Is(Kind::kFloat)) return a.number() == b.number();
  // An integer and a float: exactly, not as two floats.
  const double number = a.Is(Kind::kFloat) ? a.number() : b.number();
  const int64_t integer = a.Is(Kind::kFloat) ? b.integer() : a.integer();
  return number >= -0x1p63 && number < 0x1p63 && std::trunc(number) == number &&
         static_cast<int64_t>(number) == integer;
}

uint64_t Mix(uint64_t hash, uint64_t more) {
  return (hash ^ more) * 0x9E3779B97F4A7C15u + (hash >> 29);
}

}  // namespace

Value Value::Bool(bool value) {
  Value result(Kind::kBool);
  result.integer_ = value ? 1 : 0;
  return result;
}

Value Value::Int(int64_t value) {
  Value result(Kind::kInt);
  result.integer_ = value;
  return result;
}

Value Value::Float(double value) {
  Value result(Kind::kFloat);
  result.float_ = value;
  return result;
}

Value Value::Of(Kind kind, std::shared_ptr<Object> object) {
  Value result(kind);
  result.object_ = std::move(object);
  return result;
}

Value Value::StringLiteral(std::string text) {
  return Of(Kind::kString, std::make_shared<StringObject>(std::move(text), false));
}

const StringObject& Value::string() const { return static_cast<StringObject&>(*object_); }
const std::string& Value::text() const { return string().text; }
const ListObject& Value::list() const { return static_cast<ListObject&>(*object_); }
const DictObject& Value::dict() const { return static_cast<DictObject&>(*object_); }
const DictViewObject& Value::view() const { return static_cast<DictViewObject&>(*object_); }
const RangeObject& Value::range() const { return static_cast<RangeObject&>(*object_); }
const UndefinedObject& Value::undefined() const { return static_cast<UndefinedObject&>(*object_); }
NamespaceObject& Value::name_space() const { return static_cast<NamespaceObject&>(*object_); }
IteratorObject& Value::iterator() const { return static_cast<IteratorObject&>(*object_); }
CallableObject& Value::callable() const { return static_cast<CallableObject&>(*object_); }
CyclerObject& Value::cycler() const { return static_cast<CyclerObject&>(*object_); }

StringObject::StringObject(std::string contents, bool is_safe)
    : text(std::move(contents)), length(CountCodePoints(text)), safe(is_safe) {}

void Object::CountItems(size_t items) const {
  if (account_ == nullptr) return;
  account_->runtime->Step();
  account_->runtime->StepItems(items);
}

void Object::CountBytes(size_t bytes) const {
  if (account_ != nullptr) account_->runtime->StepBytes(bytes);
}

void DictObject::Set(Value key, Value value) {
  depth = std::max({depth, key.depth() + 1, value.depth() + 1});
  if (const Value* found = Find(key)) {
    // The first of equal keys stays: {1: 'a', true: 'b'} is {1: 'b'}.
    const_cast<Value&>(*found) = std::move(value);
    return;
  }
  items.emplace_back(std::move(key), std::move(value));
  if (items.size() == kIndexFrom) {
    for (size_t i = 0; i < items.size(); ++i) index_.emplace(Hash(items[i].first), i);
  } else if (items.size() > kIndexFrom) {
    index_.emplace(Hash(items.back().first), items.size() - 1);
  }
}

const Value* DictObject::Find(const Value& key) const {
  if (items.size() < kIndexFrom) {
    for (const auto& item : items) {
      if (Equals(item.first, key)) return &item.second;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(Hash(key));
  for (auto it = begin; it != end; ++it) {
    if (Equals(items[it->second].first, key)) return &items[it->second].second;
  }
  return nullptr;
}

const Value* DictObject::Find(std::string_view key) const {
  const auto matches = [key](const Value& other) {
    return other.Is(Kind::kString) && other.text() == key;
  };
  if (items.size() < kIndexFrom) {
    for (const auto& item : items) {
      if (matches(item.first)) return &item.second;
    }
    return nullptr;
  }
  const auto [begin, end] = index_.equal_range(std::hash<std::string_view>{}(key));
  for (auto it = begin; it != end; ++it) {
    if (matches(items[it->second].first)) return &items[it->second].second;
  }
  return nullptr;
}

const Value* NamespaceObject::Find(const std::string& name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &attributes[it->second].second;
}

void NamespaceObject::Set(const std::string& name, Value value) {
  const auto [it, is_new] = index_.try_emplace(name, attributes.size());
  if (is_new) {
    attributes.emplace_back(name, std::move(value));
  } else {
    attributes[it->second].second = std::move(value);
  }
}

Value CallableObject::Attribute(Runtime&, std::string_view) const { return {}; }

std::string_view TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.string().safe ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kDictView:
      switch (value.view().part) {
        case DictViewObject::Part::kKeys:
          return "dict_keys";
        case DictViewObject::Part::kValues:
          return "dict_values";
        case DictViewObject::Part::kItems:
          return "dict_items";
      }
      break;
    case Kind::kRange:
      return "range";
    case Kind::kIterator:
      return "generator";
    case Kind::kNamespace:
      return "Namespace";
    case Kind::kCallable:
      return "function";
    case Kind::kLoop:
      return "LoopContext";
    case Kind::kCycler:
      return "Cycler";
  }
  return "object";
}

bool Equals(const Value& a, const Value& b) {
  if (a.IsNumber() && b.IsNumber()) return EqualNumbers(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kNone:
    case Kind::kUndefined:
      return true;
    case Kind::kString:
      if (a.text().size() == b.text().size()) a.string().CountBytes(a.text().size());
      return a.text() == b.text();
    case Kind::kList:
    case Kind::kTuple:
      if (a.object() == b.object()) return true;
      a.list().CountItems(a.list().items.size());
      return EqualSequences(a.list().items, b.list().items);
    case Kind::kDict:
      if (a.object() == b.object()) return true;
      a.dict().CountItems(a.dict().items.size());
      return EqualDicts(a.dict(), b.dict());
    case Kind::kDictView:
      a.view().CountItems(a.view().dict.dict().items.size());
      return EqualViews(a.view(), b.view());
    case Kind::kRange:
      return EqualRanges(a.range(), b.range());
    default:
      return a.object() == b.object();
  }
}

bool IsHashable(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
    case Kind::kDict:
    case Kind::kDictView:
      return false;
    case Kind::kTuple:
      value.list().CountItems(value.list().items.size());
      return std::all_of(value.list().items.begin(), value.list().items.end(), IsHashable);
    default:
      return true;
  }
}

uint64_t Hash(const Value& value) {
  switch (value.kind()) {
    case Kind::kBool:
    case Kind::kInt:
      return Mix(1, static_cast<uint64_t>(value.integer()));
    case Kind::kFloat: {
      const double number = value.number();
      if (number >= -0x1p63 && number < 0x1p63 && std::trunc(number) == number) {
        return Mix(1, static_cast<uint64_t>(static_cast<int64_t>(number)));
      }
      return Mix(2, std::hash<double>{}(number));
    }
    case Kind::kString:
      value.string().CountBytes(value.text().size());
      return std::hash<std::string_view>{}(value.text());
    case Kind::kTuple: {
      value.list().CountItems(value.list().items.size());
      uint64_t hash = 3;
      for (const Value& item : value.list().items) hash = Mix(hash, Hash(item));
      return hash;
    }
    case Kind::kRange:
      return Mix(4, static_cast<uint64_t>(value.range().length));
    case Kind::kNone:
      return 5;
    case Kind::kUndefined:
      return 6;
    default:
      return Mix(7, reinterpret_cast<uintptr_t>(value.object().get()));
  }
}

}  // namespace adder::text::jinja
