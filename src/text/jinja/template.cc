#include "text/jinja/template.h"

#include <algorithm>
#include <limits>
#include <map>

#include "text/jinja/evaluator.h"
#include "text/jinja/parser.h"
#include "text/utf8.h"

namespace adder::text::jinja {
namespace {

Value FromJson(Runtime& runtime, const Json& json);

std::string ValidText(const std::string& text) {
  return IsValidUtf8(text) ? text : ToValidUtf8(text);
}

// The numbers that JSON proper cannot write; see ParseJson.
bool IsNonFinite(const Json& json) {
  return json.size() == 1 && json.begin().key() == "__float__" && json.begin()->is_string();
}

Value FromObject(Runtime& runtime, const Json& json) {
  if (IsNonFinite(json)) {
    const auto& word = json.begin()->get_ref<const std::string&>();
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (word == "Infinity") return Value::Float(kInfinity);
    if (word == "-Infinity") return Value::Float(-kInfinity);
    if (word == "NaN") return Value::Float(std::numeric_limits<double>::quiet_NaN());
  }
  auto dict = std::make_shared<DictObject>();
  for (auto item = json.begin(); item != json.end(); ++item) {
    dict->Set(runtime.String(ValidText(item.key())), FromJson(runtime, *item));
  }
  return runtime.Dict(std::move(dict));
}

Value FromJson(Runtime& runtime, const Json& json) {
  const Runtime::Level level(runtime);
  switch (json.type()) {
    case Json::value_t::boolean:
      return Value::Bool(json.get<bool>());
    case Json::value_t::number_integer:
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_unsigned:
      if (json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        runtime.Fail("The number ", json.get<uint64_t>(), " does not fit in 64 bits with a sign.");
      }
      return Value::Int(json.get<int64_t>());
    case Json::value_t::number_float:
      return Value::Float(json.get<double>());
    case Json::value_t::string:
      return runtime.String(ValidText(json.get_ref<const std::string&>()));
    case Json::value_t::array: {
      std::vector<Value> items;
      items.reserve(json.size());
      for (const Json& item : json) items.push_back(FromJson(runtime, item));
      return runtime.List(std::move(items));
    }
    case Json::value_t::object:
      return FromObject(runtime, json);
    default:
      return Value::None();
  }
}

}  // namespace

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  localtime_r(&now, &local);
  return local;
}

Template::Template(std::string_view source, const std::string& name)
    : parsed_(ParseTemplate(source, name)) {}

std::string Template::Render(const Variables& variables, const std::function<std::tm()>& clock,
                             const Limits& limits) const {
  // Values are destroyed before the runtime, which counts their memory.
  Runtime runtime(parsed_.name, limits, clock);
  std::map<std::string, Value, std::less<>> context;
  for (const auto& [name, json] : variables) {
    if (Reads(name) && !context.contains(name)) context.emplace(name, FromJson(runtime, json));
  }
  return Evaluator(runtime, parsed_, context).Run();
}

bool Template::Reads(std::string_view variable) const {
  return std::find(parsed_.context_names.begin(), parsed_.context_names.end(), variable) !=
         parsed_.context_names.end();
}

}  // namespace adder::text::jinja
