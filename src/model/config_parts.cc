#include "model/config_parts.h"

#include <cmath>

#include "core/error.h"

namespace adder {

JsonObject ReadTextConfig(const JsonObject& whole) {
  if (const auto nested = whole.Object({"text_config"})) return *nested;
  if (!whole.Has("hidden_size")) {
    Fail(whole.where(),
         " lacks the field text_config, in which a multimodal model's config describes its text "
         "model; nor is there a hidden_size, as in a text model's own config.");
  }
  return whole;
}

std::vector<bool> ReadListedLayers(const JsonObject& config, std::string_view key, int64_t layers,
                                   int64_t first) {
  std::vector<bool> listed(static_cast<size_t>(layers), false);
  for (const double number : config.Numbers({key})) {
    const double index = number - static_cast<double>(first);
    // Written so that NaN and fractions fail.
    if (!(index >= 0 && index < static_cast<double>(layers)) || index != std::floor(index)) {
      Fail(config.where(), ": the field ", key, " has the entry ", number, "; layers are numbered ",
           first, " to ", first + layers - 1, ".");
    }
    if (listed[static_cast<size_t>(index)]) {
      Fail(config.where(), ": the field ", key, " has the entry ", number, " twice.");
    }
    listed[static_cast<size_t>(index)] = true;
  }
  return listed;
}

std::vector<bool> ReadLayersOfType(const JsonObject& config, std::string_view key, int64_t layers,
                                   std::string_view type, std::string_view other) {
  std::vector<bool> of_type;
  for (const std::string& entry : config.Strings({key})) {
    if (entry != type && entry != other) {
      Fail(config.where(), ": the field ", key, " has the entry \"", entry, "\"; \"", type,
           "\" and \"", other, "\" are known.");
    }
    of_type.push_back(entry == type);
  }
  if (static_cast<int64_t>(of_type.size()) != layers) {
    Fail(config.where(), ": the field ", key, " has ", of_type.size(),
         " entries, but the model has ", layers, " layers.");
  }
  return of_type;
}

void RequireSame(const JsonObject& config, std::initializer_list<std::string_view> keys) {
  std::string_view first;
  for (const std::string_view key : keys) {
    if (!config.Has(key)) continue;
    if (first.empty()) first = key;
    const Json& value = *config.Find({key});
    const Json& expected = *config.Find({first});
    if (value == expected) continue;
    Fail(config.where(), ": the field ", key, " is ", value.dump(), ", but ", first, " is ",
         expected.dump(), "; they should say the same.");
  }
}

}  // namespace adder
