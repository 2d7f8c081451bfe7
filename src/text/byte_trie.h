// A trie over byte strings, for finding which of many strings occur at a place of a text.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>

namespace adder::text {

class ByteTrie {
 public:
  // `value` must not be negative; a key added again takes the new value. Empty keys are ignored.
  void Add(std::string_view key, int32_t value) {
    if (key.empty()) return;
    uint32_t node = kRoot;
    for (char byte : key) {
      const auto [it, added] = children_.try_emplace(Edge(node, byte), next_node_);
      if (added) ++next_node_;
      node = it->second;
    }
    values_[node] = value;
  }

  // Calls visit(length, value) for every key that `text` begins with, shortest first.
  template <class Visit>
  void ForEachPrefix(std::string_view text, Visit visit) const {
    uint32_t node = kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto child = children_.find(Edge(node, text[i]));
      if (child == children_.end()) return;
      node = child->second;
      const auto value = values_.find(node);
      if (value != values_.end()) visit(i + 1, value->second);
    }
  }

 private:
  static constexpr uint32_t kRoot = 0;
  static uint64_t Edge(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
  }

  std::unordered_map<uint64_t, uint32_t> children_;
  std::unordered_map<uint32_t, int32_t> values_;
  uint32_t next_node_ = 1;
};

}  // namespace adder::text
