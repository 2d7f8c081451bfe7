// JSON from outside: a strict, bounded parser and typed access whose errors name file and field.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace adder {

using Json = nlohmann::ordered_json;

inline constexpr int kMaxJsonDepth = 64;

// What becomes of an integer beyond 64 bits: a floating number near it, or an Error.
enum class LargeIntegers { kRound, kRefuse };

// Parses UTF-8 JSON text. `source` names it in errors (a path). Beyond the standard it accepts the
// bare words Infinity, -Infinity and NaN that Python's json module writes, as floating numbers.
// Throws Error for bad syntax, invalid UTF-8, a duplicate key in one object, nesting deeper than
// `max_depth`, or trailing text.
Json ParseJson(std::string_view text, std::string_view source, int max_depth = kMaxJsonDepth,
               LargeIntegers large = LargeIntegers::kRound);

// ReadFile + ParseJson.
Json ReadJsonFile(const std::string& path, uint64_t max_bytes = uint64_t{1} << 28,
                  LargeIntegers large = LargeIntegers::kRound);

// Text of `value` as Python's json module writes and reads it: the non-finite numbers that
// ParseJson accepts are written as bare words again. Indented by two spaces, with a final newline.
std::string PrintJson(const Json& value);

// Typed, error-reporting access to one JSON object. Holds a pointer into a Json that must outlive
// it.
class JsonObject {
 public:
  // `where` is the file and, for nested objects, the field path: "config.json", "config.json:
  // rope_scaling". Throws Error when `value` is not an object.
  JsonObject(const Json& value, std::string where);

  // Present and not null.
  bool Has(std::string_view key) const;
  // The first of `keys` that is present and not null, or nothing.
  const Json* Find(std::initializer_list<std::string_view> keys) const;

  // Each getter reads the first present key of `keys` (a field and its other names in real files).
  // Without a default a missing field is an Error; a value of the wrong type or outside [min, max]
  // always is.
  int64_t Int(std::initializer_list<std::string_view> keys, int64_t min, int64_t max,
              std::optional<int64_t> default_value = std::nullopt) const;
  // Accepts integers, floats, and {"__float__": "Infinity"|"-Infinity"|"NaN"}.
  double Number(std::initializer_list<std::string_view> keys,
                std::optional<double> default_value = std::nullopt) const;
  bool Bool(std::initializer_list<std::string_view> keys,
            std::optional<bool> default_value = std::nullopt) const;
  std::string String(std::initializer_list<std::string_view> keys,
                     std::optional<std::string> default_value = std::nullopt) const;
  // An array of strings / numbers; missing gives an empty vector.
  std::vector<std::string> Strings(std::initializer_list<std::string_view> keys) const;
  std::vector<double> Numbers(std::initializer_list<std::string_view> keys) const;
  // A nested object; nothing when missing or null.
  std::optional<JsonObject> Object(std::initializer_list<std::string_view> keys) const;

  const Json& value() const { return *value_; }
  const std::string& where() const { return where_; }

 private:
  const Json* value_;
  std::string where_;
};

}  // namespace adder
