#include "text/unigram.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

// How much worse than the rarest token an unknown character is.
constexpr double kUnknownPenalty = 10.0;

// The reference reads a number in two steps, each of which rounds: its digits as an integer, then
// that divided by a power of ten. The last bit decides between splits whose exact scores are equal,
// so do the same, from the shortest digits that stand for the number: files hold those.
double RoundedTwice(double score) {
  constexpr int kMaxExactPower = 22;  // 10^22 is the largest power of ten that is a double
  char text[32];
  const auto [end, error] =
      std::to_chars(text, text + sizeof(text), score, std::chars_format::scientific);
  if (error != std::errc() || !std::isfinite(score)) return score;
  const char* exponent_text = std::find(text, end, 'e') + 1;
  // from_chars takes no plus sign.
  int exponent = 0;
  std::from_chars(exponent_text + (*exponent_text == '+' ? 1 : 0), end, exponent);
  uint64_t digits = 0;
  bool behind_point = false;
  for (const char* c = text; *c != 'e'; ++c) {
    if (*c == '.') behind_point = true;
    if (*c < '0' || *c > '9') continue;
    digits = digits * 10 + static_cast<uint64_t>(*c - '0');
    if (behind_point) --exponent;
  }
  if (exponent >= 0 || -exponent > kMaxExactPower) return score;
  double power = 1;
  for (int i = exponent; i < 0; ++i) power *= 10;
  return std::copysign(static_cast<double>(digits) / power, score);
}

}  // namespace

UnigramModel::UnigramModel(const JsonObject& model)
    : TokenModel(Vocabulary()),
      where_(model.where()),
      byte_fallback_(model.Bool({"byte_fallback"}, false)) {
  const Json* vocab = model.Find({"vocab"});
  if (vocab == nullptr || !vocab->is_array() || vocab->empty()) {
    Fail(where_, ": the field vocab should be an array of [token, score] pairs.");
  }
  if (vocab->size() > static_cast<size_t>(Vocabulary::kMaxIds)) {
    Fail(where_, ": the field vocab has more than ", Vocabulary::kMaxIds, " tokens.");
  }
  double lowest = std::numeric_limits<double>::infinity();
  for (const Json& entry : *vocab) {
    const auto id = static_cast<int32_t>(scores_.size());
    if (!entry.is_array() || entry.size() != 2 || !entry[0].is_string() || !entry[1].is_number()) {
      Fail(where_, ": the entry ", id, " of vocab should be a [token, score] pair, it is ",
           entry.dump(), ".");
    }
    const auto& token = entry[0].get_ref<const std::string&>();
    vocabulary_.Add(token, id);
    trie_.Add(token, id);
    scores_.push_back(RoundedTwice(entry[1].get<double>()));
    lowest = std::min(lowest, scores_.back());
  }
  unknown_score_ = lowest - kUnknownPenalty;
  unknown_id_ = static_cast<int32_t>(model.Int({"unk_id"}, -1, vocabulary_.size() - 1, -1));
}

int32_t UnigramModel::UnknownId() const {
  if (unknown_id_ < 0) Fail(where_, ": no token for a part of the text, and unk_id is not set.");
  return unknown_id_;
}

void UnigramModel::Tokenize(std::string_view piece, bool raw_bytes,
                            std::vector<int32_t>& ids) const {
  std::string characters;
  if (raw_bytes) {
    AppendByteCharacters(piece, characters);
    piece = characters;
  }
  // The best way to reach each byte position: the token that ends there and where it began.
  struct Step {
    double score = 0;
    int32_t id = -1;
    size_t begin = std::string_view::npos;
  };
  std::vector<Step> best(piece.size() + 1);
  const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
    Step& step = best[end];
    const double total = score + best[begin].score;
    if (step.begin == std::string_view::npos || total > step.score) step = {total, id, begin};
  };
  for (size_t begin = 0; begin < piece.size();) {
    size_t character_end = begin;
    DecodeUtf8(piece, character_end);
    bool has_character = false;
    trie_.ForEachPrefix(piece.substr(begin), [&](size_t length, int32_t id) {
      offer(begin, begin + length, id, scores_[static_cast<size_t>(id)]);
      has_character |= begin + length == character_end;
    });
    if (!has_character) offer(begin, character_end, UnknownId(), unknown_score_);
    begin = character_end;
  }

  // Walk back; neighbouring unknown characters are one token.
  std::vector<std::string_view> tokens;
  size_t unknown_end = 0;
  for (size_t end = piece.size(); end > 0;) {
    const Step& step = best[end];
    const bool unknown = unknown_id_ >= 0 && step.id == unknown_id_;
    if (unknown && unknown_end > 0) {
      tokens.back() = piece.substr(step.begin, unknown_end - step.begin);
    } else {
      tokens.push_back(piece.substr(step.begin, end - step.begin));
      unknown_end = unknown ? end : 0;
    }
    end = step.begin;
  }
  for (auto token = tokens.rbegin(); token != tokens.rend(); ++token) AppendToken(*token, ids);
}

void UnigramModel::AppendToken(std::string_view text, std::vector<int32_t>& ids) const {
  const int32_t id = vocabulary_.Find(text);
  if (id >= 0) {
    ids.push_back(id);
    return;
  }
  if (byte_fallback_) {
    const size_t before = ids.size();
    for (char byte : text) {
      const int32_t byte_id = vocabulary_.Find(ByteTokenName(static_cast<uint8_t>(byte)));
      if (byte_id < 0) break;
      ids.push_back(byte_id);
    }
    if (ids.size() - before == text.size()) return;
    ids.resize(before);
  }
  ids.push_back(UnknownId());
}

}  // namespace adder::text
