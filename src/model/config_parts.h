// Parts of config.json that several families have alike.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "core/json.h"

namespace adder {

// The text model's fields: those of text_config in the config of a multimodal model, else the whole
// config's. Throws Error when there is neither a text_config nor a hidden_size beside it.
JsonObject ReadTextConfig(const JsonObject& whole);

// Which of `layers` layers the field `key` lists by their numbers, counted from `first` on. Without
// the field: none. Throws Error naming the field and the entry that is no layer's number, or is one
// for the second time.
std::vector<bool> ReadListedLayers(const JsonObject& config, std::string_view key, int64_t layers,
                                   int64_t first = 0);

// Throws Error, naming two fields and their values, unless all of `keys` that the config has, names
// of one thing in different writers' files, say the same.
void RequireSame(const JsonObject& config, std::initializer_list<std::string_view> keys);

}  // namespace adder
