// The values of a template: Python's, as far as templates can see them.
//
// Strings, lists, tuples and dicts never change once they are made (the sandbox forbids it), so
// they are shared. Namespaces, cyclers, joiners, loops and iterators have a state; whatever could
// be part of a cycle of references is owned by the Runtime until the end of a rendering.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace adder::text::jinja {

class Runtime;
class Value;

enum class Kind {
  kMissing,  // a variable that has no value yet; never the value of an expression
  kUndefined,
  kNone,
  kBool,
  kInt,
  kFloat,
  kString,
  kList,
  kTuple,
  kDict,
  kDictView,
  kRange,
  kIterator,  // what map, select, reverse and others give: elements come once, on demand
  kNamespace,
  kCallable,  // functions, bound methods, macros, joiners
  kLoop,
  kCycler,
};

// Counts the bytes that the values of one rendering hold.
struct MemoryAccount {
  Runtime* runtime;  // which also counts the steps
  size_t live = 0;
};

// Whatever a Value refers to.
class Object {
 public:
  Object() = default;
  virtual ~Object() {
    if (account_ != nullptr) account_->live -= charged_;
  }
  Object(const Object&) = delete;
  Object& operator=(const Object&) = delete;

  void ChargeTo(MemoryAccount& account, size_t bytes) {
    account_ = &account;
    charged_ = bytes;
    account.live += bytes;
  }
  // Counts steps of the rendering for walking through `items` elements, or `bytes` of a text. For
  // walks that have no Runtime at hand: a list may hold one list many times, so that walking takes
  // exponential time.
  void CountItems(size_t items) const;
  void CountBytes(size_t bytes) const;
  // How deeply containers are nested in this one, itself included. Bounded, so that walking and
  // destroying a value needs bounded stack.
  int depth = 1;

 private:
  MemoryAccount* account_ = nullptr;
  size_t charged_ = 0;
};

struct StringObject;
struct ListObject;
struct DictObject;
struct DictViewObject;
struct RangeObject;
struct UndefinedObject;
struct NamespaceObject;
class IteratorObject;
class CallableObject;
class LoopObject;
struct CyclerObject;

class Value {
 public:
  Value() = default;  // kMissing
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool value);
  static Value Int(int64_t value);
  static Value Float(double value);
  // A value of `kind` that refers to `object`, which must be of the kind's type.
  static Value Of(Kind kind, std::shared_ptr<Object> object);
  // For literals, which belong to no rendering. `text` must be valid UTF-8.
  static Value StringLiteral(std::string text);

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool IsUndefined() const { return kind_ == Kind::kUndefined; }
  // An int or a bool, which Python counts as one.
  bool IsInteger() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool IsNumber() const { return IsInteger() || kind_ == Kind::kFloat; }
  bool IsListOrTuple() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }

  bool bool_value() const { return integer_ != 0; }
  int64_t integer() const { return integer_; }  // of a bool too
  double number() const {                       // of any number
    return kind_ == Kind::kFloat ? float_ : static_cast<double>(integer_);
  }

  const std::shared_ptr<Object>& object() const { return object_; }
  const StringObject& string() const;
  const std::string& text() const;
  const ListObject& list() const;  // of a list or tuple
  const DictObject& dict() const;
  const DictViewObject& view() const;
  const RangeObject& range() const;
  const UndefinedObject& undefined() const;
  NamespaceObject& name_space() const;
  IteratorObject& iterator() const;
  CallableObject& callable() const;
  LoopObject& loop() const;
  CyclerObject& cycler() const;

  int depth() const { return object_ == nullptr ? 0 : object_->depth; }

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kMissing;
  union {
    int64_t integer_ = 0;
    double float_;
  };
  std::shared_ptr<Object> object_;
};

struct StringObject : Object {
  StringObject(std::string contents, bool is_safe);
  bool ascii() const { return length == text.size(); }

  const std::string text;  // valid UTF-8
  const size_t length;     // in code points
  const bool safe;         // marked as safe HTML: what is joined to it gets escaped
};

struct ListObject : Object {
  std::vector<Value> items;
  bool group = false;  // a tuple of groupby, with the attributes grouper and list
};

struct DictObject : Object {
  // Replaces the value of a key that is there already, as Python does. The key must be hashable.
  void Set(Value key, Value value);
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;

  std::vector<std::pair<Value, Value>> items;

 private:
  // By hash; only once there are many items.
  std::unordered_multimap<uint64_t, size_t> index_;
};

struct DictViewObject : Object {
  enum class Part { kKeys, kValues, kItems };
  Value dict;
  Part part = Part::kKeys;
};

struct RangeObject : Object {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;
  int64_t length = 0;
};

struct UndefinedObject : Object {
  std::string message;  // what is said when it is used
};

struct NamespaceObject : Object {
  const Value* Find(const std::string& name) const;
  void Set(const std::string& name, Value value);

  std::vector<std::pair<std::string, Value>> attributes;

 private:
  std::unordered_map<std::string, size_t> index_;
};

class IteratorObject : public Object {
 public:
  // The next element, or false at the end.
  virtual bool Next(Runtime& runtime, Value& element) = 0;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class CallableObject : public Object {
 public:
  virtual Value Call(Runtime& runtime, Arguments arguments) = 0;
  // What printing it writes, without angle brackets: "function range".
  virtual std::string Describe() const = 0;
  // An attribute a template may read (a macro's name), or kMissing.
  virtual Value Attribute(Runtime& runtime, std::string_view name) const;
};

struct CyclerObject : Object {
  std::vector<Value> items;
  size_t position = 0;
};

// The name of the value's Python type, such as "str".
std::string_view TypeName(const Value& value);

// Python's truth value. An iterator is true, even when it is at its end.
bool IsTrue(const Value& value);

// Python's ==, for values that need not be of the same type.
bool Equals(const Value& a, const Value& b);

// Whether the value can be a key of a dict.
bool IsHashable(const Value& value);
// Equal values have equal hashes.
uint64_t Hash(const Value& value);

}  // namespace adder::text::jinja
