// Remembers the ids of short pieces of text: most words of a text are among few.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace adder::text {

class PieceCache {
 public:
  // Fits with length, count and ids in one 64-byte cache line.
  static constexpr size_t kMaxPiece = 31;
  static constexpr size_t kMaxIds = 7;

  struct Entry {
    char key[kMaxPiece + 1] = {};  // the piece, zeros, and its length in the last byte
    uint32_t count = 0;            // of ids
    int32_t ids[kMaxIds] = {};
  };

  // Null where the piece is not known. `piece` must not be empty.
  const Entry* Find(std::string_view piece) const {
    if (piece.size() > kMaxPiece) return nullptr;
    const Key key(piece);
    const Entry* pair = &entries_[key.Slot()];
    if (key.Matches(pair[0])) return &pair[0];
    return key.Matches(pair[1]) ? &pair[1] : nullptr;
  }

  // Takes the place of the older of the two pieces that may be where this one goes.
  void Add(std::string_view piece, std::span<const int32_t> ids) {
    if (piece.size() > kMaxPiece || ids.size() > kMaxIds) return;
    const Key key(piece);
    Entry* pair = &entries_[key.Slot()];
    pair[1] = pair[0];
    std::memcpy(pair[0].key, key.bytes, sizeof(key.bytes));
    pair[0].count = static_cast<uint32_t>(ids.size());
    std::memcpy(pair[0].ids, ids.data(), ids.size_bytes());
  }

 private:
  static constexpr size_t kPairs = size_t{1} << 13;  // 1 MiB in all, to stay in the L2 cache

  struct Key {
    explicit Key(std::string_view piece) {
      std::memcpy(bytes, piece.data(), piece.size());
      bytes[kMaxPiece] = static_cast<char>(piece.size());
    }
    size_t Slot() const {
      uint64_t words[4];
      std::memcpy(words, bytes, sizeof(words));
      uint64_t hash = (words[0] ^ words[1] * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
      hash ^= hash >> 32;
      hash = (hash ^ words[2] ^ words[3] * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
      return (hash >> 40) % kPairs * 2;
    }
    bool Matches(const Entry& entry) const {
      return std::memcmp(bytes, entry.key, sizeof(bytes)) == 0;
    }
    char bytes[kMaxPiece + 1] = {};
  };

  std::vector<Entry> entries_ = std::vector<Entry>(kPairs * 2);
};

static_assert(sizeof(PieceCache::Entry) == 64);

}  // namespace adder::text
