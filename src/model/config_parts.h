// Parts of config.json that several families have alike.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json.h"

namespace adder {

// The text model's fields: those of text_config in the config of a multimodal model, else the whole
// config's. Throws Error when there is neither a text_config nor a hidden_size beside it.
JsonObject ReadTextConfig(const JsonObject& whole);

// What a config's layers are, when several fields may say so. Implementations differ in which of
// them they read, so all that are there have to agree. `Layers` has one entry per layer.
template <class Layers>
class AgreedLayers {
 public:
  explicit AgreedLayers(const JsonObject& config) : config_(config) {}

  // Throws Error naming both fields when another field has said otherwise.
  void Add(std::string_view field, Layers layers) {
    if (!layers_) {
      field_ = field;
      layers_ = std::move(layers);
    } else if (layers != *layers_) {
      Fail(config_.where(), ": the fields ", field_, " and ", field, " describe different layers.");
    }
  }
  // Nothing when no field said anything.
  const std::optional<Layers>& get() const { return layers_; }

 private:
  const JsonObject& config_;
  std::string field_;
  std::optional<Layers> layers_;
};

// Which of `layers` layers the field `key` lists by their numbers, counted from `first` on. Without
// the field: none. Throws Error naming the field and the entry that is no layer's number, or is one
// for the second time.
std::vector<bool> ReadListedLayers(const JsonObject& config, std::string_view key, int64_t layers,
                                   int64_t first = 0);

// Which of `layers` layers the field `key`, a list with one of two words per layer, calls `type`;
// the others it calls `other`. Throws Error naming the field, and an entry that is neither.
std::vector<bool> ReadLayersOfType(const JsonObject& config, std::string_view key, int64_t layers,
                                   std::string_view type, std::string_view other);

// Throws Error, naming two fields and their values, unless all of `keys` that the config has, names
// of one thing in different writers' files, say the same.
void RequireSame(const JsonObject& config, std::initializer_list<std::string_view> keys);

}  // namespace adder
