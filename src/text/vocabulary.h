// The two-way map between token strings and ids.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/json.h"

namespace adder::text {

class Vocabulary {
 public:
  // Ids must lie below this. It keeps one absurd id in a small file from sizing a table.
  static constexpr int32_t kMaxIds = 1 << 22;

  // Reads {"token": id, ...}. Throws Error, beginning with `where`, for anything else, an id out of
  // range, or one used twice.
  static Vocabulary Parse(const Json& value, const std::string& where);

  // A token that is there already keeps its old string for Token() and gets the new id for Find().
  // `id` must be in [0, kMaxIds).
  void Add(std::string_view token, int32_t id);

  // -1 where there is no such token.
  int32_t Find(std::string_view token) const {
    const auto it = ids_.find(token);
    return it == ids_.end() ? -1 : it->second;
  }
  // Empty where there is no such id; valid as long as the vocabulary.
  std::string_view Token(int32_t id) const {
    return Has(id) ? tokens_[static_cast<size_t>(id)] : std::string_view();
  }
  bool Has(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < present_.size() &&
           present_[static_cast<size_t>(id)];
  }
  // One more than the largest id.
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }

 private:
  std::deque<std::string> strings_;  // addresses stay put, also when the vocabulary is moved
  std::vector<std::string_view> tokens_;
  std::vector<bool> present_;
  std::unordered_map<std::string_view, int32_t> ids_;
};

}  // namespace adder::text
