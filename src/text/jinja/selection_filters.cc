// Filters that map and select elements. They give iterators: nothing is computed before it is
// asked for.
#include <functional>
#include <memory>
#include <utility>

#include "text/jinja/attribute_path.h"
#include "text/jinja/filters.h"
#include "text/jinja/iteration.h"
#include "text/jinja/value_tests.h"

namespace adder::text::jinja {
namespace {

// Takes the next element of the input; gives whether there is a result for it, and the result.
using Step = std::function<bool(Runtime&, const Value& element, Value& result)>;

// The results of a step for each element of `input`. `prepare` makes the step, not before the first
// result is asked for; an input that is false in Python's eyes has no elements.
Value Transform(Runtime& runtime, const Value& input, std::function<Step(Runtime&)> prepare) {
  struct State {
    Value input;
    std::function<Step(Runtime&)> prepare;
    Step step;
    std::shared_ptr<IteratorObject> elements;
  };
  auto state = std::make_shared<State>();
  state->input = input;
  state->prepare = std::move(prepare);
  const auto next = [state](Runtime& run, Value& result) {
    if (!IsTrue(state->input)) return false;
    if (!state->step) {
      state->step = state->prepare(run);
      state->elements = Iterate(run, state->input);
    }
    const Runtime::Level level(run);
    Value element;
    while (state->elements->Next(run, element)) {
      run.Step();
      if (state->step(run, element, result)) return true;
    }
    return false;
  };
  return runtime.Iterator(MakeIterator(next), input.depth());
}

Arguments Without(const Arguments& arguments, size_t first) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(first),
                         arguments.positional.end());
  rest.named = arguments.named;
  return rest;
}

Step PrepareMap(Runtime& runtime, const Arguments& arguments) {
  if (!arguments.positional.empty()) {
    const Value& name = arguments.positional[0];
    if (!name.Is(Kind::kString)) runtime.Fail("map takes the name of a filter.");
    return [filter = name.text(), rest = Without(arguments, 1)](Runtime& run, const Value& element,
                                                                Value& result) {
      result = ApplyFilter(run, filter, element, rest);
      return true;
    };
  }
  Value attribute;
  Value absent = Value::None();
  for (const auto& [name, value] : arguments.named) {
    if (name == "attribute") {
      attribute = value;
    } else if (name == "default") {
      absent = value;
    } else {
      runtime.Fail("map takes no argument named ", name, ".");
    }
  }
  if (attribute.Is(Kind::kMissing)) runtime.Fail("map needs the name of a filter or an attribute.");
  return [path = AttributePath(runtime, attribute), absent](Runtime& run, const Value& element,
                                                            Value& result) {
    result = path.Follow(run, element, &absent);
    return true;
  };
}

Value Map(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Transform(runtime, input,
                   [arguments](Runtime& run) { return PrepareMap(run, arguments); });
}

// Selects the elements for which a test gives `wanted`; of an attribute's value with kByAttribute.
template <bool kByAttribute>
Step PrepareSelection(Runtime& runtime, const Arguments& arguments, bool wanted) {
  constexpr size_t kTest = kByAttribute ? 1 : 0;
  if (arguments.positional.size() < kTest) {
    runtime.Fail("selectattr and rejectattr need the name of an attribute.");
  }
  AttributePath path(runtime, kByAttribute ? arguments.positional[0] : Value::None());
  if (arguments.positional.size() == kTest) {
    return [path, wanted](Runtime& run, const Value& element, Value& result) {
      result = element;
      return IsTrue(path.Follow(run, element)) == wanted;
    };
  }
  const Value& name = arguments.positional[kTest];
  if (!name.Is(Kind::kString)) runtime.Fail("select and reject take the name of a test.");
  return [path, wanted, test = name.text(), rest = Without(arguments, kTest + 1)](
             Runtime& run, const Value& element, Value& result) {
    result = element;
    return ApplyTest(run, test, path.Follow(run, element), rest) == wanted;
  };
}

template <bool kByAttribute, bool kWanted>
Value Selection(Runtime& runtime, const Value& input, const Arguments& arguments) {
  return Transform(runtime, input, [arguments](Runtime& run) {
    return PrepareSelection<kByAttribute>(run, arguments, kWanted);
  });
}

constexpr NamedFilter kFilters[] = {{"map", Map},
                                    {"reject", Selection<false, false>},
                                    {"rejectattr", Selection<true, false>},
                                    {"select", Selection<false, true>},
                                    {"selectattr", Selection<true, true>}};

}  // namespace

std::span<const NamedFilter> SelectionFilters() { return kFilters; }

}  // namespace adder::text::jinja
