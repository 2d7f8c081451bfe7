// One rendering: its bounds, the memory of its values, and where its errors lie.
#pragma once

#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/jinja/value.h"

namespace adder::text::jinja {

// Bounds of one rendering. A step is one node of the tree, one loop iteration, or some 64 bytes of
// text or 16 elements that an operation goes through.
struct Limits {
  uint64_t steps = 50'000'000;
  size_t memory_bytes = size_t{512} << 20;  // of all values that live at one time
  size_t text_bytes = size_t{128} << 20;    // of one string, and of what is rendered
  int call_depth = 1200;                    // nested expressions, blocks and macro calls
};

class Runtime {
 public:
  Runtime(const std::string& template_name, const Limits& limits, std::function<std::tm()> clock);
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  // Throws Error with the template's name and the current line.
  template <class... Parts>
  [[noreturn]] void Fail(const Parts&... parts) const {
    throw Error(Concat(template_name_, ", line ", line, ": ", parts...));
  }
  // For the use of an undefined value.
  [[noreturn]] void FailUndefined(const Value& value) const;

  // --- bounds
  void Step(uint64_t steps = 1) {
    if (steps > steps_left_) FailSteps();
    steps_left_ -= steps;
  }
  void StepBytes(size_t bytes) { Step(bytes / 64); }
  void StepItems(size_t items) { Step(items / 16); }
  // Throws Error when a string of `bytes` would be too long; for use before it is made.
  void CheckText(size_t bytes) const;

  // A level of recursion, for as long as it lives.
  class Level {
   public:
    explicit Level(Runtime& runtime) : runtime_(runtime) {
      if (++runtime_.level_ > runtime_.limits_.call_depth) {
        --runtime_.level_;
        runtime_.FailDepth();
      }
    }
    ~Level() { --runtime_.level_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    Runtime& runtime_;
  };

  // --- values. Each is charged to the memory of the rendering.
  Value String(std::string text, bool safe = false);
  Value List(std::vector<Value> items) { return Sequence(Kind::kList, std::move(items)); }
  Value Tuple(std::vector<Value> items) { return Sequence(Kind::kTuple, std::move(items)); }
  // A (grouper, list) of the filter groupby.
  Value Group(Value grouper, Value list);
  Value Dict(std::shared_ptr<DictObject> dict);
  Value Undefined(std::string message);
  // An iterator over elements of values as deep as `depth`.
  Value Iterator(std::shared_ptr<IteratorObject> iterator, int depth);
  Value Callable(std::shared_ptr<CallableObject> callable);
  // A namespace lives as long as the rendering, and so does what it refers to in the end.
  Value Namespace();
  Value Cycler(std::vector<Value> items);

  // Keeps `object` until the end of the rendering, when `release` is to drop the references it
  // holds. For objects that could be part of a cycle.
  void KeepUntilEnd(std::shared_ptr<void> object, std::function<void()> release);

  // `object`, charged with `bytes`. Throws Error when containers are nested too deeply in it.
  void Register(Object& object, size_t bytes);

  std::tm Now() const { return clock_(); }

  int line = 1;  // of what is being evaluated

 private:
  Value Sequence(Kind kind, std::vector<Value> items);
  [[noreturn]] void FailSteps() const;
  [[noreturn]] void FailDepth() const;

  const std::string& template_name_;
  const Limits limits_;
  std::function<std::tm()> clock_;
  uint64_t steps_left_;
  int level_ = 0;
  MemoryAccount memory_{this};
  struct Kept {
    std::shared_ptr<void> object;
    std::function<void()> release;
  };
  std::vector<Kept> kept_;
};

}  // namespace adder::text::jinja
