#include "text/jinja/globals.h"

#include <array>
#include <ctime>

#include "text/jinja/arguments.h"
#include "text/jinja/iteration.h"
#include "text/jinja/operators.h"
#include "text/jinja/print.h"
#include "text/utf8.h"

namespace adder::text::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;  // jinja2's sandbox has the same limit

using GlobalFunction = Value (*)(Runtime& runtime, const Arguments& arguments);

class FunctionObject : public CallableObject {
 public:
  FunctionObject(std::string_view name, GlobalFunction function)
      : name_(name), function_(function) {}
  Value Call(Runtime& runtime, Arguments arguments) override {
    return function_(runtime, arguments);
  }
  std::string Describe() const override { return Concat("function ", name_); }

 private:
  const std::string_view name_;
  const GlobalFunction function_;
};

// Gives nothing the first time it is called, and the separator from then on.
class Joiner : public CallableObject {
 public:
  explicit Joiner(Value separator) : separator_(std::move(separator)) {
    depth = separator_.depth() + 1;
  }
  Value Call(Runtime& runtime, Arguments arguments) override {
    const ArgumentReader reader(runtime, "joiner", arguments, {});
    if (used_) return separator_;
    used_ = true;
    return runtime.String("");
  }
  std::string Describe() const override { return "Joiner object"; }

 private:
  const Value separator_;
  bool used_ = false;
};

Value Range(Runtime& runtime, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "range", arguments, {"start", "stop", "step"}, 1,
                              ArgumentReader::Passing::kByPosition);
  auto range = std::make_shared<RangeObject>();
  const bool only_stop = reader.Get(1) == nullptr;
  range->start = only_stop ? 0 : reader.Int(0);
  range->stop = only_stop ? reader.Int(0) : reader.Int(1);
  range->step = reader.Int(2, 1);
  if (range->step == 0) runtime.Fail("range: the step cannot be 0.");
  // As unsigned numbers, whose differences do not overflow.
  const auto start = static_cast<uint64_t>(range->start);
  const auto stop = static_cast<uint64_t>(range->stop);
  uint64_t length = 0;
  if (range->step > 0 && range->start < range->stop) {
    length = (stop - start - 1) / static_cast<uint64_t>(range->step) + 1;
  } else if (range->step < 0 && range->start > range->stop) {
    length = (start - stop - 1) / (0 - static_cast<uint64_t>(range->step)) + 1;
  }
  if (length > static_cast<uint64_t>(kMaxRange)) {
    runtime.Fail("range: there are more than ", kMaxRange, " numbers.");
  }
  range->length = static_cast<int64_t>(length);
  runtime.Register(*range, 0);
  return Value::Of(Kind::kRange, std::move(range));
}

std::shared_ptr<DictObject> MakeDict(Runtime& runtime, const Arguments& arguments) {
  if (arguments.positional.size() > 1) runtime.Fail("dict takes at most one value by position.");
  auto dict = std::make_shared<DictObject>();
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    if (given.Is(Kind::kDict)) {
      runtime.StepItems(16 * given.dict().items.size());
      for (const auto& [key, value] : given.dict().items) dict->Set(key, value);
    } else {
      for (const Value& pair : ToVector(runtime, given)) {
        std::vector<Value> parts = ToVector(runtime, pair);
        if (parts.size() != 2) runtime.Fail("dict takes pairs of a key and a value.");
        if (!IsHashable(parts[0])) {
          runtime.Fail("A value of type ", TypeName(parts[0]), " cannot be a key of a dict.");
        }
        dict->Set(std::move(parts[0]), std::move(parts[1]));
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict->Set(runtime.String(name), value);
  return dict;
}

Value Dict(Runtime& runtime, const Arguments& arguments) {
  return runtime.Dict(MakeDict(runtime, arguments));
}

Value Namespace(Runtime& runtime, const Arguments& arguments) {
  const Value dict = Dict(runtime, arguments);
  Value name_space = runtime.Namespace();
  for (const auto& [key, value] : dict.dict().items) {
    if (!key.Is(Kind::kString))
      runtime.Fail("The attributes of a namespace have strings as names.");
    name_space.name_space().Set(key.text(), value);
  }
  return name_space;
}

Value MakeJoiner(Runtime& runtime, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "joiner", arguments, {"sep"});
  Value separator = reader.Get(0) == nullptr ? runtime.String(", ") : *reader.Get(0);
  return runtime.Callable(std::make_shared<Joiner>(std::move(separator)));
}

Value MakeCycler(Runtime& runtime, const Arguments& arguments) {
  if (!arguments.named.empty()) runtime.Fail("cycler takes no arguments by name.");
  if (arguments.positional.empty()) runtime.Fail("cycler needs at least one value.");
  return runtime.Cycler(arguments.positional);
}

Value RaiseException(Runtime& runtime, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "raise_exception", arguments, {"message"}, 1);
  runtime.Fail("The template refuses the conversation: ", ToString(runtime, *reader.Get(0)));
}

Value StrftimeNow(Runtime& runtime, const Arguments& arguments) {
  const ArgumentReader reader(runtime, "strftime_now", arguments, {"format"}, 1);
  constexpr size_t kMaxFormat = 4096;
  constexpr size_t kLongestField = 64;  // of one conversion, such as %c
  const std::string format = reader.Text(0);
  if (format.size() > kMaxFormat || format.find('\0') != std::string::npos) {
    runtime.Fail("strftime_now: the format is longer than ", kMaxFormat, " bytes, or has a NUL.");
  }
  // Python knows the time to microseconds, and no time zone here.
  std::string known;
  for (size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%' || i + 1 == format.size()) {
      // A last % stands for itself.
      known += format[i] == '%' ? "%%" : std::string(1, format[i]);
      continue;
    }
    const char conversion = format[++i];
    if (conversion == 'f') {
      known += "000000";
    } else if (conversion == 'z' || conversion == 'Z') {
      continue;
    } else if (conversion >= '0' && conversion <= '9') {
      runtime.Fail("strftime_now: widths such as %10d are not supported.");
    } else {
      known += '%';
      known += conversion;
    }
  }
  if (known.empty()) return runtime.String("");
  const std::tm now = runtime.Now();
  std::string text((known.size() + 1) * kLongestField, '\0');
  text.resize(std::strftime(text.data(), text.size(), known.c_str(), &now));
  return runtime.String(ToValidUtf8(text));
}

struct NamedFunction {
  std::string_view name;
  GlobalFunction function;
};
constexpr std::array<NamedFunction, 7> kFunctions = {{{"range", Range},
                                                      {"dict", Dict},
                                                      {"namespace", Namespace},
                                                      {"joiner", MakeJoiner},
                                                      {"cycler", MakeCycler},
                                                      {"raise_exception", RaiseException},
                                                      {"strftime_now", StrftimeNow}}};

}  // namespace

Value MakeGlobal(Runtime& runtime, std::string_view name) {
  for (const NamedFunction& function : kFunctions) {
    if (function.name == name) {
      return runtime.Callable(std::make_shared<FunctionObject>(function.name, function.function));
    }
  }
  return {};
}

bool HasGlobal(std::string_view name) {
  for (const NamedFunction& function : kFunctions) {
    if (function.name == name) return true;
  }
  return false;
}

}  // namespace adder::text::jinja
