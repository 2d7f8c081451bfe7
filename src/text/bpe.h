// Byte-pair encoding: start from characters (or bytes), join the pair of neighbours whose merge
// comes first in the list, leftmost first, until no pair is left.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/token_model.h"

namespace adder::text {

// Flat hash table from a pair of neighbouring ids to its merge.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint64_t pair = kEmpty;
    uint32_t rank = kNoRank;  // position in the list of merges
    int32_t id = -1;          // of the joined token
  };

  // Makes room for `count` merges.
  explicit MergeTable(size_t count);

  // A pair added again takes the new rank. At most `count` merges may be added.
  void Add(int32_t left, int32_t right, uint32_t rank, int32_t id);

  // The merge of a pair; its rank is kNoRank where there is none.
  const Merge& Find(int32_t left, int32_t right) const { return slots_[Slot(Pair(left, right))]; }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  static uint64_t Pair(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  // Where `pair` is, or the empty slot where it would go.
  size_t Slot(uint64_t pair) const {
    size_t slot = (pair * 0x9E3779B97F4A7C15u) >> shift_;
    while (slots_[slot].pair != pair && slots_[slot].pair != kEmpty) {
      slot = (slot + 1) & (slots_.size() - 1);
    }
    return slot;
  }

  std::vector<Merge> slots_;  // a power of two, at most half full
  int shift_;
};

// Between which characters a merge can happen at all. Neighbours that no merge ever joins split a
// piece into parts that can be tokenized one by one.
class CharacterJoins {
 public:
  // Both characters must have tokens of their own.
  void AddCharacter(char32_t c) { known_.insert(c); }
  void AddJoin(char32_t left, char32_t right) { joins_.insert(Pair(left, right)); }
  // Once all are added.
  void Finish();

  // Whether `left` and `right` may belong together: a merge joins them, or one is unknown.
  bool MayJoin(char32_t left, char32_t right) const {
    if (left < kAscii && right < kAscii) return ascii_[left * kAscii + right];
    return MayJoinSlow(left, right);
  }

 private:
  static constexpr char32_t kAscii = 128;
  static uint64_t Pair(char32_t left, char32_t right) { return uint64_t{left} << 32 | right; }
  bool MayJoinSlow(char32_t left, char32_t right) const {
    return joins_.contains(Pair(left, right)) || !known_.contains(left) || !known_.contains(right);
  }

  std::unordered_set<char32_t> known_;
  std::unordered_set<uint64_t> joins_;
  std::bitset<kAscii * kAscii> ascii_;
};

class BpeModel : public TokenModel {
 public:
  // Training's dropout has no part in inference and is not read.
  explicit BpeModel(const JsonObject& model);

  void Tokenize(std::string_view piece, bool raw_bytes, std::vector<int32_t>& ids) const override;
  size_t SafePrefix(std::string_view piece) const override;

 private:
  void ReadMerges(const JsonObject& model);
  void FindJoins(const JsonObject& model);
  void AppendCharacters(std::string_view piece, std::vector<int32_t>& symbols) const;
  int32_t UnknownId() const;
  // Joins neighbours in place; returns how many symbols are left.
  size_t MergeShort(int32_t* symbols, size_t count) const;
  size_t MergeLong(int32_t* symbols, size_t count) const;

  std::string where_;
  MergeTable merges_;
  std::string unknown_token_;
  std::string continuing_prefix_;
  std::string end_suffix_;
  bool fuse_unknown_;
  bool byte_fallback_;
  bool ignore_merges_;
  std::array<int32_t, 256> byte_token_;       // id of "<0x..>", or -1
  std::array<int32_t, 256> character_token_;  // id of a byte's byte-level character, or -1
  CharacterJoins joins_;
  bool can_cut_ = false;  // whether joins_ tells the whole truth
  bool all_bytes_;        // every byte-level character is a token and symbols have no affixes
};

}  // namespace adder::text
