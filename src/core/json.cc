#include "core/json.h"

#include <cctype>
#include <cmath>
#include <set>

#include "core/error.h"
#include "core/file.h"

namespace adder {
namespace {

// Stands for the bare words in the text handed to the parser; a number this large cannot be written
// otherwise, since the parser rejects literals that overflow.
constexpr std::string_view kInfinityStandIn = "{\"__float__\":\"Infinity\"}";
constexpr std::string_view kMinusInfinityStandIn = "{\"__float__\":\"-Infinity\"}";
constexpr std::string_view kNanStandIn = "{\"__float__\":\"NaN\"}";

// Replaces Python's non-finite words outside strings by the object form of the same values.
std::string ReplaceNonFiniteWords(std::string_view text) {
  if (text.find("Infinity") == std::string_view::npos &&
      text.find("NaN") == std::string_view::npos) {
    return std::string(text);
  }
  std::string out;
  out.reserve(text.size() + 64);
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    const std::string_view rest = text.substr(i);
    if (in_string) {
      const size_t length = rest[0] == '\\' && rest.size() > 1 ? 2 : 1;
      if (rest[0] == '"') in_string = false;
      out.append(rest.substr(0, length));
      i += length;
    } else if (rest.starts_with("-Infinity")) {
      out.append(kMinusInfinityStandIn);
      i += 9;
    } else if (rest.starts_with("Infinity")) {
      out.append(kInfinityStandIn);
      i += 8;
    } else if (rest.starts_with("NaN")) {
      out.append(kNanStandIn);
      i += 3;
    } else {
      in_string = rest[0] == '"';
      out.push_back(rest[0]);
      ++i;
    }
  }
  return out;
}

// What the library says without the name of its exception in front.
std::string_view Reason(const Json::exception& error) {
  std::string_view reason = error.what();
  const size_t end = reason.find("] ");
  if (reason.starts_with("[json.") && end != std::string_view::npos) reason.remove_prefix(end + 2);
  return reason;
}

// Builds a Json while refusing deep nesting and duplicate keys, which the library's own builder
// lets pass.
class BoundedBuilder : public nlohmann::json_sax<Json> {
 public:
  BoundedBuilder(std::string_view source, int max_depth, LargeIntegers large)
      : source_(source), max_depth_(max_depth), large_(large) {}

  bool null() override { return Add(Json(nullptr)); }
  bool boolean(bool value) override { return Add(Json(value)); }
  bool number_integer(number_integer_t value) override { return Add(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return Add(Json(value)); }
  bool number_float(number_float_t value, const string_t& text) override {
    const bool integer = text.find_first_of(".eE") == string_t::npos;
    if (integer && large_ == LargeIntegers::kRefuse) {
      Fail(source_, " holds the integer ", text, ", which does not fit in 64 bits.");
    }
    return Add(Json(value));
  }
  bool string(string_t& value) override { return Add(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& value) override {
    Level& level = stack_.back();
    if (!level.keys.insert(value).second) {
      Fail(source_, " has the key \"", value, "\" twice in one object.");
    }
    level.key = std::move(value);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    Fail(source_, " is not valid JSON near byte ", position, ": ", Reason(error), ".");
  }

  Json Take() { return std::move(root_); }

 private:
  struct Level {
    Json value;
    std::string key;
    std::set<std::string> keys;
  };

  bool Open(Json value) {
    if (static_cast<int>(stack_.size()) >= max_depth_) {
      Fail(source_, " is nested deeper than ", max_depth_, " levels.");
    }
    stack_.push_back({std::move(value), {}, {}});
    return true;
  }
  bool Close() {
    Json value = std::move(stack_.back().value);
    stack_.pop_back();
    return Add(std::move(value));
  }
  bool Add(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
    } else if (stack_.back().value.is_array()) {
      stack_.back().value.push_back(std::move(value));
    } else {
      // Uniqueness was checked in key(), so the linear search of operator[] can be skipped.
      auto& object = stack_.back().value.get_ref<Json::object_t&>();
      object.Container::emplace_back(std::move(stack_.back().key), std::move(value));
    }
    return true;
  }

  std::string source_;
  int max_depth_;
  LargeIntegers large_;
  std::vector<Level> stack_;
  Json root_;
};

// Appends `value`, its lines indented by `indent` more than the first.
void Print(const Json& value, const std::string& indent, std::string& out) {
  if (!value.is_structured() || value.empty()) {
    out += value.dump();
    return;
  }
  if (value.is_object() && value.size() == 1 && value.begin().key() == "__float__") {
    const Json& word = *value.begin();
    if (word == "Infinity" || word == "-Infinity" || word == "NaN") {
      out += word.get_ref<const std::string&>();
      return;
    }
  }
  const std::string inner = indent + "  ";
  out += value.is_object() ? '{' : '[';
  for (auto item = value.begin(); item != value.end(); ++item) {
    out += item == value.begin() ? "\n" : ",\n";
    out += inner;
    if (value.is_object()) out += Json(item.key()).dump() + ": ";
    Print(*item, inner, out);
  }
  out += '\n';
  out += indent;
  out += value.is_object() ? '}' : ']';
}

std::string Names(std::initializer_list<std::string_view> keys) {
  std::string text;
  for (std::string_view key : keys) {
    if (!text.empty()) text += " / ";
    text += key;
  }
  return text;
}

std::optional<double> AsNumber(const Json& value) {
  if (value.is_number()) return value.get<double>();
  if (value.is_object() && value.size() == 1 && value.contains("__float__")) {
    const Json& word = value["__float__"];
    if (word == "Infinity") return std::numeric_limits<double>::infinity();
    if (word == "-Infinity") return -std::numeric_limits<double>::infinity();
    if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  }
  return std::nullopt;
}

// A value in a message.
std::string Shown(const Json& value) {
  if (!AsNumber(value)) return value.dump();
  std::string out;
  Print(value, "", out);
  return out;
}

}  // namespace

Json ParseJson(std::string_view text, std::string_view source, int max_depth, LargeIntegers large) {
  BoundedBuilder builder(source, max_depth, large);
  try {
    if (!Json::sax_parse(ReplaceNonFiniteWords(text), &builder)) {
      Fail(source, " is not valid JSON.");
    }
  } catch (const Json::exception& error) {
    Fail(source, " is not valid JSON: ", Reason(error), ".");
  }
  return builder.Take();
}

Json ReadJsonFile(const std::string& path, uint64_t max_bytes, LargeIntegers large) {
  return ParseJson(ReadFile(path, max_bytes), path, kMaxJsonDepth, large);
}

std::string PrintJson(const Json& value) {
  std::string out;
  Print(value, "", out);
  return out + "\n";
}

JsonObject::JsonObject(const Json& value, std::string where)
    : value_(&value), where_(std::move(where)) {
  // A number that is not finite is an object only as far as this code writes it.
  if (!value.is_object() || AsNumber(value)) Fail(where_, " should hold a JSON object.");
}

const Json* JsonObject::Find(std::initializer_list<std::string_view> keys) const {
  for (std::string_view key : keys) {
    const auto it = value_->find(key);
    if (it != value_->end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

bool JsonObject::Has(std::string_view key) const { return Find({key}) != nullptr; }

int64_t JsonObject::Int(std::initializer_list<std::string_view> keys, int64_t min, int64_t max,
                        std::optional<int64_t> default_value) const {
  const Json* found = Find(keys);
  if (found == nullptr) {
    if (default_value) return *default_value;
    Fail(where_, " lacks the field ", Names(keys), ".");
  }
  // Some writers store whole numbers as 4.0.
  const bool whole_float = found->is_number_float() && std::abs(found->get<double>()) < 9e15 &&
                           found->get<double>() == std::floor(found->get<double>());
  if (!found->is_number_integer() && !whole_float) {
    Fail(where_, ": the field ", Names(keys), " should be an integer, it is ", Shown(*found), ".");
  }
  const bool too_large =
      found->is_number_unsigned() &&
      found->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const int64_t value =
      whole_float ? static_cast<int64_t>(found->get<double>()) : found->get<int64_t>();
  if (too_large || value < min || value > max) {
    Fail(where_, ": the field ", Names(keys), " is ", Shown(*found), ", outside ", min, " to ", max,
         ".");
  }
  return value;
}

double JsonObject::Number(std::initializer_list<std::string_view> keys,
                          std::optional<double> default_value) const {
  const Json* found = Find(keys);
  if (found == nullptr) {
    if (default_value) return *default_value;
    Fail(where_, " lacks the field ", Names(keys), ".");
  }
  const std::optional<double> value = AsNumber(*found);
  if (!value) {
    Fail(where_, ": the field ", Names(keys), " should be a number, it is ", Shown(*found), ".");
  }
  return *value;
}

bool JsonObject::Bool(std::initializer_list<std::string_view> keys,
                      std::optional<bool> default_value) const {
  const Json* found = Find(keys);
  if (found == nullptr) {
    if (default_value) return *default_value;
    Fail(where_, " lacks the field ", Names(keys), ".");
  }
  if (!found->is_boolean()) {
    Fail(where_, ": the field ", Names(keys), " should be true or false, it is ", Shown(*found),
         ".");
  }
  return found->get<bool>();
}

std::string JsonObject::String(std::initializer_list<std::string_view> keys,
                               std::optional<std::string> default_value) const {
  const Json* found = Find(keys);
  if (found == nullptr) {
    if (default_value) return *default_value;
    Fail(where_, " lacks the field ", Names(keys), ".");
  }
  if (!found->is_string()) {
    Fail(where_, ": the field ", Names(keys), " should be a string, it is ", Shown(*found), ".");
  }
  return found->get<std::string>();
}

std::vector<std::string> JsonObject::Strings(std::initializer_list<std::string_view> keys) const {
  const Json* found = Find(keys);
  std::vector<std::string> values;
  if (found == nullptr) return values;
  if (!found->is_array())
    Fail(where_, ": the field ", Names(keys), " should be an array of strings.");
  for (const Json& item : *found) {
    if (!item.is_string()) {
      Fail(where_, ": the field ", Names(keys), " should hold strings only, it has ", Shown(item),
           ".");
    }
    values.push_back(item.get<std::string>());
  }
  return values;
}

std::vector<double> JsonObject::Numbers(std::initializer_list<std::string_view> keys) const {
  const Json* found = Find(keys);
  std::vector<double> values;
  if (found == nullptr) return values;
  if (!found->is_array())
    Fail(where_, ": the field ", Names(keys), " should be an array of numbers.");
  for (const Json& item : *found) {
    const std::optional<double> value = AsNumber(item);
    if (!value) {
      Fail(where_, ": the field ", Names(keys), " should hold numbers only, it has ", Shown(item),
           ".");
    }
    values.push_back(*value);
  }
  return values;
}

std::optional<JsonObject> JsonObject::Object(std::initializer_list<std::string_view> keys) const {
  const Json* found = Find(keys);
  if (found == nullptr) return std::nullopt;
  return JsonObject(*found, Concat(where_, ": ", Names(keys)));
}

}  // namespace adder
