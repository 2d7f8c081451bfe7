// Filters that work on lists, dicts and other values with elements.
#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "text/jinja/arguments.h"
#include "text/jinja/attribute_path.h"
#include "text/jinja/filters.h"
#include "text/jinja/iteration.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"

namespace adder::text::jinja {
namespace {

// Strings compare without regard to case, unless that is asked for.
Value IgnoreCase(Runtime& runtime, const Value& value) {
  if (!value.Is(Kind::kString)) return value;
  return FindStringMethod("lower")(runtime, value, {});
}

// An iterator over a list that is made when its first element is asked for.
Value Lazily(Runtime& runtime, int depth, std::function<std::vector<Value>(Runtime&)> make) {
  struct State {
    std::function<std::vector<Value>(Runtime&)> make;
    std::shared_ptr<IteratorObject> elements;
  };
  auto state = std::make_shared<State>();
  state->make = std::move(make);
  const auto next = [state](Runtime& run, Value& element) {
    if (!state->elements) {
      const Runtime::Level level(run);
      state->elements = Iterate(run, run.List(state->make(run)));
    }
    return state->elements->Next(run, element);
  };
  return runtime.Iterator(MakeIterator(next), depth);
}

Value Default(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "default", arguments, {"default_value", "boolean"});
  const bool replaced = input.IsUndefined() || (reader.Bool(1) && !IsTrue(input));
  if (!replaced) return input;
  return reader.Get(0) != nullptr ? *reader.Get(0) : runtime.String("");
}

Value First(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "first", arguments, {});
  Value first;
  if (Iterate(runtime, input)->Next(runtime, first)) return first;
  return runtime.Undefined("No first item, sequence was empty");
}

// The elements from the last to the first, for values that Python can reverse.
std::optional<std::vector<Value>> Reversed(Runtime& runtime, const Value& input) {
  if (input.Is(Kind::kIterator) || !IsIterable(input)) return std::nullopt;
  std::vector<Value> items = ToVector(runtime, input);
  std::reverse(items.begin(), items.end());
  return items;
}

Value Last(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "last", arguments, {});
  if (input.IsListOrTuple() && !input.list().items.empty()) return input.list().items.back();
  const auto reversed = Reversed(runtime, input);
  if (!reversed) runtime.Fail("last: a value of type ", TypeName(input), " has no last element.");
  return reversed->empty() ? runtime.Undefined("No last item, sequence was empty")
                           : reversed->front();
}

Value Reverse(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "reverse", arguments, {});
  if (input.Is(Kind::kString)) {
    return GetSlice(runtime, input, Value::None(), Value::None(), Value::Int(-1));
  }
  if (auto reversed = Reversed(runtime, input)) {
    const Value list = runtime.List(std::move(*reversed));
    return runtime.Iterator(Iterate(runtime, list), list.depth());
  }
  std::vector<Value> items = ToVector(runtime, input);
  std::reverse(items.begin(), items.end());
  return runtime.List(std::move(items));
}

Value LengthFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "length", arguments, {});
  const auto length = Length(input);
  if (!length) runtime.Fail("length: a value of type ", TypeName(input), " has no length.");
  return Value::Int(*length);
}

Value ListFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "list", arguments, {});
  return runtime.List(ToVector(runtime, input));
}

Value Join(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "join", arguments, {"d", "attribute"});
  const std::string separator = reader.Get(0) == nullptr ? "" : ToString(runtime, *reader.Get(0));
  const AttributePath path(runtime, reader.Get(1, Value::None()));
  const auto iterator = Iterate(runtime, input);
  std::string joined;
  Value item;
  for (bool first = true; iterator->Next(runtime, item); first = false) {
    if (!first) joined += separator;
    runtime.StepBytes(separator.size());
    AppendString(runtime, path.Follow(runtime, item), joined);
  }
  return runtime.String(std::move(joined));
}

Value Batch(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "batch", arguments, {"linecount", "fill_with"}, 1);
  const int64_t size = reader.Int(0);
  const Value fill = reader.Get(1, Value::None());
  return Lazily(runtime, input.depth() + fill.depth() + 1, [input, size, fill](Runtime& run) {
    std::vector<Value> batches;
    std::vector<Value> batch;
    const auto iterator = Iterate(run, input);
    Value item;
    while (iterator->Next(run, item)) {
      if (static_cast<int64_t>(batch.size()) == size) {
        batches.push_back(run.List(std::exchange(batch, {})));
      }
      batch.push_back(item);
    }
    if (batch.empty()) return batches;
    if (!fill.Is(Kind::kNone) && static_cast<int64_t>(batch.size()) < size) {
      // In two steps, since the product could overflow.
      run.CheckText(static_cast<size_t>(size));
      run.CheckText(static_cast<size_t>(size) * sizeof(Value));
      run.StepItems(static_cast<size_t>(size));
      batch.resize(static_cast<size_t>(size), fill);
    }
    batches.push_back(run.List(std::move(batch)));
    return batches;
  });
}

Value SliceFilter(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "slice", arguments, {"slices", "fill_with"}, 1);
  const int64_t count = reader.Int(0);
  const Value fill = reader.Get(1, Value::None());
  return Lazily(runtime, input.depth() + fill.depth() + 1, [input, count, fill](Runtime& run) {
    const std::vector<Value> items = ToVector(run, input);
    if (count == 0) run.Fail("slice: the number of slices is 0.");
    std::vector<Value> slices;
    const auto length = static_cast<int64_t>(items.size());
    const int64_t per_slice = count > 0 ? length / count : 0;
    const int64_t with_extra = count > 0 ? length % count : 0;
    auto next = items.begin();
    for (int64_t i = 0; i < count; ++i) {
      run.Step();
      const auto end = next + (per_slice + (i < with_extra ? 1 : 0));
      std::vector<Value> slice(next, end);
      if (!fill.Is(Kind::kNone) && i >= with_extra) slice.push_back(fill);
      slices.push_back(run.List(std::move(slice)));
      next = end;
    }
    return slices;
  });
}

// Elements with the keys they are sorted by.
using Keyed = std::vector<std::pair<Value, Value>>;

void SortByKey(Runtime& runtime, Keyed& keyed, bool descending) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return descending ? IsLess(runtime, b.first, a.first) : IsLess(runtime, a.first, b.first);
  });
}

std::vector<Value> Elements(Keyed keyed) {
  std::vector<Value> elements;
  elements.reserve(keyed.size());
  for (auto& item : keyed) elements.push_back(std::move(item.second));
  return elements;
}

Value Sort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "sort", arguments,
                              {"reverse", "case_sensitive", "attribute"});
  const bool case_sensitive = reader.Bool(1);
  const auto paths = ParseAttributePaths(runtime, reader.Get(2, Value::None()));
  Keyed keyed;
  for (Value& item : ToVector(runtime, input)) {
    std::vector<Value> key;
    for (const AttributePath& path : paths) {
      Value part = path.Follow(runtime, item);
      key.push_back(case_sensitive ? std::move(part) : IgnoreCase(runtime, part));
    }
    keyed.emplace_back(runtime.List(std::move(key)), std::move(item));
  }
  SortByKey(runtime, keyed, reader.Bool(0));
  return runtime.List(Elements(std::move(keyed)));
}

Value DictSort(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "dictsort", arguments, {"case_sensitive", "by", "reverse"});
  const std::string by = reader.Text(1, "key");
  if (by != "key" && by != "value") runtime.Fail("dictsort sorts by \"key\" or \"value\".");
  RequireDefined(runtime, input);
  if (!input.Is(Kind::kDict)) runtime.Fail("dictsort takes a dict, not ", TypeName(input), ".");
  Keyed keyed;
  for (const auto& [key, value] : input.dict().items) {
    const Value& sorted_by = by == "key" ? key : value;
    keyed.emplace_back(reader.Bool(0) ? sorted_by : IgnoreCase(runtime, sorted_by),
                       runtime.Tuple({key, value}));
  }
  SortByKey(runtime, keyed, reader.Bool(2));
  return runtime.List(Elements(std::move(keyed)));
}

// Reads the arguments that unique, min and max have in common.
std::function<Value(Runtime&, const Value&)> KeyFunction(Runtime& runtime, std::string_view filter,
                                                         const Arguments& arguments) {
  const ArgumentReader reader(runtime, filter, arguments, {"case_sensitive", "attribute"});
  const bool case_sensitive = reader.Bool(0);
  return [case_sensitive, path = AttributePath(runtime, reader.Get(1, Value::None()))](
             Runtime& run, const Value& item) {
    const Value key = path.Follow(run, item);
    return case_sensitive ? key : IgnoreCase(run, key);
  };
}

Value Unique(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto key_of = KeyFunction(runtime, "unique", arguments);
  return Lazily(runtime, input.depth(), [input, key_of](Runtime& run) {
    DictObject seen;
    std::vector<Value> unique;
    for (Value& item : ToVector(run, input)) {
      const Value key = key_of(run, item);
      if (!IsHashable(key)) {
        run.Fail("unique: a value of type ", TypeName(key), " cannot be compared by its hash.");
      }
      if (seen.Find(key) != nullptr) continue;
      seen.Set(key, Value::None());
      unique.push_back(std::move(item));
    }
    return unique;
  });
}

template <bool kLargest>
Value Extreme(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const auto key_of = KeyFunction(runtime, kLargest ? "max" : "min", arguments);
  const auto iterator = Iterate(runtime, input);
  Value best;
  if (!iterator->Next(runtime, best)) {
    return runtime.Undefined("No aggregated item, sequence was empty");
  }
  Value best_key = key_of(runtime, best);
  Value item;
  while (iterator->Next(runtime, item)) {
    Value key = key_of(runtime, item);
    const bool better =
        Compare(runtime, kLargest ? Comparison::kGreater : Comparison::kLess, key, best_key);
    if (!better) continue;
    best = item;
    best_key = std::move(key);
  }
  return best;
}

Value Sum(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "sum", arguments, {"attribute", "start"});
  const AttributePath path(runtime, reader.Get(0, Value::None()));
  Value sum = reader.Get(1, Value::Int(0));
  if (sum.Is(Kind::kString)) runtime.Fail("sum does not add strings; use join.");
  const auto iterator = Iterate(runtime, input);
  Value item;
  while (iterator->Next(runtime, item)) {
    sum = ApplyBinary(runtime, BinaryOperator::kAdd, sum, path.Follow(runtime, item));
  }
  return sum;
}

Value GroupBy(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "groupby", arguments,
                              {"attribute", "default", "case_sensitive"}, 1);
  const AttributePath path(runtime, *reader.Get(0));
  const Value absent = reader.Get(1, Value::None());
  const bool case_sensitive = reader.Bool(2);
  Keyed keyed;
  for (Value& item : ToVector(runtime, input)) {
    const Value key = path.Follow(runtime, item, &absent);
    keyed.emplace_back(case_sensitive ? key : IgnoreCase(runtime, key), std::move(item));
  }
  SortByKey(runtime, keyed, false);
  std::vector<Value> groups;
  for (size_t begin = 0; begin < keyed.size();) {
    size_t end = begin;
    std::vector<Value> members;
    while (end < keyed.size() && Equals(keyed[end].first, keyed[begin].first)) {
      members.push_back(keyed[end++].second);
    }
    const Value grouper =
        case_sensitive ? keyed[begin].first : path.Follow(runtime, members[0], &absent);
    groups.push_back(runtime.Group(grouper, runtime.List(std::move(members))));
    // NaN is not even equal to itself.
    begin = std::max(end, begin + 1);
  }
  return runtime.List(std::move(groups));
}

Value Items(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "items", arguments, {});
  return Lazily(runtime, input.depth() + 1, [input](Runtime& run) {
    std::vector<Value> items;
    if (input.IsUndefined()) return items;
    if (!input.Is(Kind::kDict)) run.Fail("items takes a dict, not ", TypeName(input), ".");
    for (const auto& [key, value] : input.dict().items) items.push_back(run.Tuple({key, value}));
    return items;
  });
}

// An attribute proper: keys of dicts do not count.
Value Attr(Runtime& runtime, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "attr", arguments, {"name"}, 1);
  const std::string name = reader.Text(0);
  RequireDefined(runtime, input);
  if (input.Is(Kind::kNamespace)) return GetAttribute(runtime, input, name);
  Value attribute = FindAttribute(runtime, input, name);
  if (!attribute.Is(Kind::kMissing)) return attribute;
  return runtime.Undefined(Concat("'", TypeName(input), " object' has no attribute '", name, "'"));
}

constexpr NamedFilter kFilters[] = {
    {"attr", Attr},       {"batch", Batch},       {"count", LengthFilter},
    {"d", Default},       {"default", Default},   {"dictsort", DictSort},
    {"first", First},     {"groupby", GroupBy},   {"items", Items},
    {"join", Join},       {"last", Last},         {"length", LengthFilter},
    {"list", ListFilter}, {"max", Extreme<true>}, {"min", Extreme<false>},
    {"reverse", Reverse}, {"slice", SliceFilter}, {"sort", Sort},
    {"sum", Sum},         {"unique", Unique},
};

}  // namespace

std::span<const NamedFilter> SequenceFilters() { return kFilters; }

}  // namespace adder::text::jinja
