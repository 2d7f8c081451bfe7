#include "text/bpe.h"

#include <bit>
#include <functional>
#include <queue>
#include <utility>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

// Words up to this many symbols are merged by scanning for the best pair, which is faster than a
// heap while everything sits in a few cache lines.
constexpr size_t kShortWord = 48;

Vocabulary ParseVocabulary(const JsonObject& model) {
  const Json* vocab = model.Find({"vocab"});
  if (vocab == nullptr) Fail(model.where(), " lacks the field vocab.");
  return Vocabulary::Parse(*vocab, model.where() + ".vocab");
}

const Json& MergeList(const JsonObject& model) {
  const Json* merges = model.Find({"merges"});
  if (merges == nullptr || !merges->is_array()) {
    Fail(model.where(), ": the field merges should be an array.");
  }
  return *merges;
}

// A merge is written "left right" or ["left", "right"].
std::pair<std::string_view, std::string_view> MergeParts(const Json& merge, size_t rank,
                                                         const std::string& where) {
  if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return {merge[0].get_ref<const std::string&>(), merge[1].get_ref<const std::string&>()};
  }
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  Fail(where, ".merges: entry ", rank, " should be a pair of tokens, it is ", merge.dump(), ".");
}

}  // namespace

MergeTable::MergeTable(size_t count) {
  const size_t slots = std::bit_ceil(count * 2 + 2);
  slots_.resize(slots);
  shift_ = 64 - std::countr_zero(slots);
}

void MergeTable::Add(int32_t left, int32_t right, uint32_t rank, int32_t id) {
  const uint64_t pair = Pair(left, right);
  slots_[Slot(pair)] = {pair, rank, id};
}

void CharacterJoins::Finish() {
  for (char32_t left = 0; left < kAscii; ++left) {
    for (char32_t right = 0; right < kAscii; ++right) {
      ascii_[left * kAscii + right] = MayJoinSlow(left, right);
    }
  }
}

BpeModel::BpeModel(const JsonObject& model)
    : TokenModel(ParseVocabulary(model)),
      where_(model.where()),
      merges_(MergeList(model).size()),
      unknown_token_(model.String({"unk_token"}, "")),
      continuing_prefix_(model.String({"continuing_subword_prefix"}, "")),
      end_suffix_(model.String({"end_of_word_suffix"}, "")),
      fuse_unknown_(model.Bool({"fuse_unk"}, false)),
      byte_fallback_(model.Bool({"byte_fallback"}, false)),
      ignore_merges_(model.Bool({"ignore_merges"}, false)),
      all_bytes_(continuing_prefix_.empty() && end_suffix_.empty()) {
  ReadMerges(model);
  FindJoins(model);
  for (size_t byte = 0; byte < 256; ++byte) {
    byte_token_[byte] = vocabulary_.Find(ByteTokenName(static_cast<uint8_t>(byte)));
    std::string character;
    AppendUtf8(ByteToCharacter(static_cast<uint8_t>(byte)), character);
    character_token_[byte] = vocabulary_.Find(character);
    all_bytes_ = all_bytes_ && character_token_[byte] >= 0;
  }
}

void BpeModel::ReadMerges(const JsonObject& model) {
  uint32_t rank = 0;
  std::string joined;
  for (const Json& merge : MergeList(model)) {
    const auto [left, right] = MergeParts(merge, rank, where_);
    const bool prefixed = right.starts_with(continuing_prefix_);
    joined = left;
    joined += prefixed ? right.substr(continuing_prefix_.size()) : right;
    const int32_t left_id = vocabulary_.Find(left);
    const int32_t right_id = vocabulary_.Find(right);
    const int32_t joined_id = vocabulary_.Find(joined);
    for (const auto& [id, token] : {std::pair<int32_t, std::string_view>{left_id, left},
                                    {right_id, right},
                                    {joined_id, joined}}) {
      if (id < 0) {
        Fail(where_, ".merges: entry ", rank, " needs the token \"", token,
             "\", which is not in vocab.");
      }
    }
    merges_.Add(left_id, right_id, rank, joined_id);
    ++rank;
  }
}

void BpeModel::FindJoins(const JsonObject& model) {
  // Affixes depend on the place in the piece, and ignore_merges on the piece as a whole.
  if (ignore_merges_ || !continuing_prefix_.empty() || !end_suffix_.empty()) return;
  for (int32_t id = 0; id < vocabulary_.size(); ++id) {
    const std::string_view token = vocabulary_.Token(id);
    size_t position = 0;
    if (token.empty()) continue;
    const char32_t c = DecodeUtf8(token, position);
    if (position == token.size()) joins_.AddCharacter(c);
  }
  size_t rank = 0;
  for (const Json& merge : MergeList(model)) {
    const auto [left, right] = MergeParts(merge, rank++, where_);
    // Symbols that are no characters may begin a merge only if their names never take part in one.
    for (std::string_view part : {left, right}) {
      if (part.empty() || part == unknown_token_ || (byte_fallback_ && part.starts_with("<0x"))) {
        return;
      }
    }
    size_t last = left.size() - 1;
    while ((static_cast<uint8_t>(left[last]) & 0xC0) == 0x80) --last;
    size_t first = 0;
    joins_.AddJoin(DecodeUtf8(left, last), DecodeUtf8(right, first));
  }
  joins_.Finish();
  can_cut_ = true;
}

size_t BpeModel::SafePrefix(std::string_view piece) const {
  if (!can_cut_) return piece.size();
  size_t position = 0;
  char32_t previous = DecodeUtf8(piece, position);
  while (position < piece.size()) {
    size_t next = position;
    const char32_t c = DecodeUtf8(piece, next);
    if (!joins_.MayJoin(previous, c)) break;
    previous = c;
    position = next;
  }
  return position;
}

int32_t BpeModel::UnknownId() const {
  const int32_t id = vocabulary_.Find(unknown_token_);
  if (id < 0) Fail(where_, ": unk_token \"", unknown_token_, "\" is needed but not in vocab.");
  return id;
}

void BpeModel::Tokenize(std::string_view piece, bool raw_bytes, std::vector<int32_t>& ids) const {
  std::string characters;
  if (raw_bytes && (ignore_merges_ || !all_bytes_)) AppendByteCharacters(piece, characters);
  if (ignore_merges_) {
    const int32_t id = vocabulary_.Find(raw_bytes ? std::string_view(characters) : piece);
    if (id >= 0) {
      ids.push_back(id);
      return;
    }
  }
  const size_t before = ids.size();
  if (!raw_bytes) {
    AppendCharacters(piece, ids);
  } else if (!all_bytes_) {
    AppendCharacters(characters, ids);
  } else {
    for (char byte : piece) ids.push_back(character_token_[static_cast<uint8_t>(byte)]);
  }
  int32_t* symbols = ids.data() + before;
  const size_t count = ids.size() - before;
  ids.resize(before +
             (count <= kShortWord ? MergeShort(symbols, count) : MergeLong(symbols, count)));
}

void BpeModel::AppendCharacters(std::string_view piece, std::vector<int32_t>& symbols) const {
  bool unknown_pending = false;
  std::string affixed;
  for (size_t begin = 0; begin < piece.size();) {
    size_t end = begin;
    DecodeUtf8(piece, end);
    std::string_view character = piece.substr(begin, end - begin);
    const bool prefix = begin > 0 && !continuing_prefix_.empty();
    const bool suffix = end == piece.size() && !end_suffix_.empty();
    if (prefix || suffix) {
      affixed = prefix ? continuing_prefix_ : "";
      affixed += character;
      if (suffix) affixed += end_suffix_;
      character = affixed;
    }
    begin = end;

    const int32_t id = vocabulary_.Find(character);
    if (id >= 0) {
      if (unknown_pending) symbols.push_back(UnknownId());
      unknown_pending = false;
      symbols.push_back(id);
      continue;
    }
    if (byte_fallback_) {
      const size_t before = symbols.size();
      for (char byte : character) {
        const int32_t byte_id = byte_token_[static_cast<uint8_t>(byte)];
        if (byte_id < 0) break;
        symbols.push_back(byte_id);
      }
      if (symbols.size() - before == character.size()) continue;
      symbols.resize(before);
    }
    // Without an unknown token, characters without a token vanish.
    if (unknown_token_.empty()) continue;
    if (unknown_pending && !fuse_unknown_) symbols.push_back(UnknownId());
    unknown_pending = true;
  }
  if (unknown_pending) symbols.push_back(UnknownId());
}

size_t BpeModel::MergeShort(int32_t* symbols, size_t count) const {
  uint32_t ranks[kShortWord];  // ranks[i]: of the pair (i, i + 1)
  const auto rank_at = [&](size_t i) { return merges_.Find(symbols[i], symbols[i + 1]).rank; };
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_at(i);
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == MergeTable::kNoRank) break;
    symbols[best] = merges_.Find(symbols[best], symbols[best + 1]).id;
    --count;
    for (size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) ranks[i] = ranks[i + 1];
    if (best > 0) ranks[best - 1] = rank_at(best - 1);
    if (best + 1 < count) ranks[best] = rank_at(best);
  }
  return count;
}

size_t BpeModel::MergeLong(int32_t* symbols, size_t count) const {
  if (count >= UINT32_MAX) Fail(where_, ": a piece of the text is longer than 4 GiB.");
  constexpr uint32_t kNone = UINT32_MAX;
  constexpr int32_t kGone = -1;
  std::vector<uint32_t> previous(count);
  std::vector<uint32_t> next(count);
  // Rank and position of a possible merge in one number, so that the smallest is the next to do.
  std::priority_queue<uint64_t, std::vector<uint64_t>, std::greater<>> queue;
  const auto offer = [&](uint32_t left) {
    const uint32_t rank = merges_.Find(symbols[left], symbols[next[left]]).rank;
    if (rank != MergeTable::kNoRank) queue.push(uint64_t{rank} << 32 | left);
  };
  const auto size = static_cast<uint32_t>(count);
  for (uint32_t i = 0; i < size; ++i) {
    previous[i] = i == 0 ? kNone : i - 1;
    next[i] = i + 1 == size ? kNone : i + 1;
  }
  for (uint32_t i = 0; i + 1 < size; ++i) offer(i);
  while (!queue.empty()) {
    const auto left = static_cast<uint32_t>(queue.top());
    const auto rank = static_cast<uint32_t>(queue.top() >> 32);
    queue.pop();
    // Entries of pairs that have changed since stay in the queue; skip them.
    if (symbols[left] == kGone || next[left] == kNone) continue;
    const uint32_t right = next[left];
    const MergeTable::Merge& merge = merges_.Find(symbols[left], symbols[right]);
    if (merge.rank != rank) continue;
    symbols[left] = merge.id;
    symbols[right] = kGone;
    next[left] = next[right];
    if (next[left] != kNone) {
      previous[next[left]] = left;
      offer(left);
    }
    if (previous[left] != kNone) offer(previous[left]);
  }
  size_t kept = 0;
  for (size_t i = 0; i < count; ++i) {
    if (symbols[i] != kGone) symbols[kept++] = symbols[i];
  }
  return kept;
}

}  // namespace adder::text
