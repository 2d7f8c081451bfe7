// A trie over byte strings, for finding which of many strings occur at a place of a text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

namespace adder::text {

// Edges lie in one flat hash table, so a step costs about one cache miss.
class ByteTrie {
 public:
  // `value` must not be negative; a key added again takes the new value. Empty keys are ignored.
  void Add(std::string_view key, int32_t value) {
    if (key.empty()) return;
    uint32_t node = kRoot;
    for (char byte : key) node = ChildOrNew(node, byte);
    values_[node] = value;
  }

  // Calls visit(length, value) for every key that `text` begins with, shortest first.
  template <class Visit>
  void ForEachPrefix(std::string_view text, Visit visit) const {
    uint32_t node = kRoot;
    for (size_t i = 0; i < text.size(); ++i) {
      node = edges_[Slot(Key(node, text[i]))].child;
      if (node == kRoot) return;
      if (values_[node] >= 0) visit(i + 1, values_[node]);
    }
  }

 private:
  static constexpr uint32_t kRoot = 0;  // no edge leads to it: also "no child"
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Edge {
    uint64_t key = kEmpty;
    uint32_t child = kRoot;
  };

  static uint64_t Key(uint32_t node, char byte) {
    return uint64_t{node} << 8 | static_cast<uint8_t>(byte);
  }
  // Where `key` is, or the empty slot where it would go.
  size_t Slot(uint64_t key) const {
    size_t slot = (key * 0x9E3779B97F4A7C15u) >> 20 & (edges_.size() - 1);
    while (edges_[slot].key != key && edges_[slot].key != kEmpty) {
      slot = (slot + 1) & (edges_.size() - 1);
    }
    return slot;
  }

  uint32_t ChildOrNew(uint32_t node, char byte) {
    const uint64_t key = Key(node, byte);
    const Edge& found = edges_[Slot(key)];
    if (found.key == key) return found.child;
    // Each node but the root has one edge. At most half full.
    if (values_.size() * 2 > edges_.size()) Grow();
    const auto child = static_cast<uint32_t>(values_.size());
    values_.push_back(-1);
    edges_[Slot(key)] = {key, child};
    return child;
  }

  void Grow() {
    std::vector<Edge> old(edges_.size() * 2);
    old.swap(edges_);
    for (const Edge& edge : old) {
      if (edge.key != kEmpty) edges_[Slot(edge.key)] = edge;
    }
  }

  std::vector<Edge> edges_ = std::vector<Edge>(16);  // a power of two
  std::vector<int32_t> values_ = {-1};               // by node; -1: no key ends here
};

}  // namespace adder::text
