#include "text/plamo.h"

#include <cmath>
#include <limits>
#include <memory>

#include "core/error.h"
#include "core/file.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 28;
// Bounds the time that one place of a text can take. Real tokens are below 100 bytes.
constexpr size_t kMaxTokenBytes = 1024;
constexpr int64_t kUnknownCost = 10'000'000;
// Tokens that cost as much are never used.
constexpr int64_t kNeverCost = 2 * kUnknownCost;
constexpr double kMaxCost = 1e9;

// The bytes of all tokens as one text.
class ByteTokensStage : public WholeTokenStage {
 public:
  void Finish() override {
    std::string text;
    stream_.Flush(text);
    Emit(text);
    next_->Finish();
  }

 protected:
  void Token(std::string_view token) override {
    std::string text;
    if (const std::optional<uint8_t> byte = ByteOfToken(token)) {
      stream_.Push(std::string(1, static_cast<char>(*byte)), text);
    } else {
      stream_.Push(token, text);
    }
    Emit(text);
  }

 private:
  Utf8Stream stream_;
};

}  // namespace

PlamoModel::PlamoModel(std::string_view lines, const std::string& where)
    : TokenModel(Vocabulary()) {
  byte_token_.fill(-1);
  size_t number = 0;
  while (!lines.empty()) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    AddLine(lines.substr(0, end), Concat(where, ": line ", ++number));
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  for (size_t byte = 0; byte < byte_token_.size(); ++byte) {
    if (byte_token_[byte] < 0) {
      Fail(where, " lacks the token ", ByteTokenName(static_cast<uint8_t>(byte)),
           " of the type BYTE.");
    }
  }
}

void PlamoModel::AddLine(std::string_view line, const std::string& where) {
  const Json row = ParseJson(line, where);
  if (!row.is_array() || row.size() < 2 || !row[0].is_string() ||
      (row.size() > 2 && !row[2].is_string())) {
    Fail(where, " should be [\"token\", score, \"TYPE\"], it is ", row.dump(), ".");
  }
  const auto& token = row[0].get_ref<const std::string&>();
  if (token.empty() || token.size() > kMaxTokenBytes) {
    Fail(where, ": the token should have 1 to ", kMaxTokenBytes, " bytes, it has ", token.size(),
         ".");
  }
  const auto id = static_cast<int32_t>(costs_.size());
  if (id >= Vocabulary::kMaxIds) Fail(where, ": there are too many tokens.");
  if (vocabulary_.Find(token) >= 0) Fail(where, ": the token \"", token, "\" is there twice.");
  vocabulary_.Add(token, id);
  costs_.push_back(kNeverCost);
  if (row.size() > 2 && row[2] == "BYTE") {
    const std::optional<uint8_t> byte = ByteOfToken(token);
    if (!byte) Fail(where, ": a token of the type BYTE should look like <0x0A>.");
    byte_token_[*byte] = id;
    return;
  }
  // Wrapped, because the reader of fields knows the spellings of NaN and infinity.
  const Json fields = {{"score", row[1]}};
  const double score = JsonObject(fields, where).Number({"score"});
  // Tokens without a finite score exist for their ids only.
  if (!std::isfinite(score)) return;
  if (std::abs(score) * 1e4 > kMaxCost) Fail(where, ": the score is out of range.");
  // Halves go to the even neighbour, as in Python.
  const auto cost = -static_cast<int64_t>(std::nearbyint(score * 1e4));
  if (cost == kUnknownCost) Fail(where, ": the score -1000 stands for unknown characters.");
  if (cost >= kNeverCost) return;
  costs_.back() = cost;
  trie_.Add(token, id);
}

// `raw_bytes` cannot occur: there is no pre-tokenizer.
void PlamoModel::Tokenize(std::string_view piece, bool /*raw_bytes*/,
                          std::vector<int32_t>& ids) const {
  // The cheapest way from each byte position to the end: its first token, or -1 for the bytes of
  // one character.
  struct Step {
    int64_t cost;
    int32_t id;
    uint32_t length;
  };
  std::vector<Step> best(piece.size() + 1);
  best[piece.size()] = {0, -1, 0};
  for (size_t begin = piece.size(); begin > 0;) {
    do --begin;
    while ((static_cast<uint8_t>(piece[begin]) & 0xC0) == 0x80);
    size_t character_end = begin;
    DecodeUtf8(piece, character_end);
    Step& step = best[begin];
    step = {best[character_end].cost + kUnknownCost, -1,
            static_cast<uint32_t>(character_end - begin)};
    trie_.ForEachPrefix(piece.substr(begin), [&](size_t length, int32_t id) {
      const int64_t cost = best[begin + length].cost + costs_[static_cast<size_t>(id)];
      if (cost <= step.cost) step = {cost, id, static_cast<uint32_t>(length)};
    });
  }
  for (size_t begin = 0; begin < piece.size(); begin += best[begin].length) {
    const Step& step = best[begin];
    if (step.id >= 0) {
      ids.push_back(step.id);
      continue;
    }
    for (char byte : piece.substr(begin, step.length)) {
      ids.push_back(byte_token_[static_cast<uint8_t>(byte)]);
    }
  }
}

TokenizerParts ReadPlamoTokenizer(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "tokenizer.jsonl";
  const TokenizerConfig config(dir, {.begin = "<|plamo:bos|>",
                                     .end = "<|plamo:eos|>",
                                     .unknown = "<|plamo:unk|>",
                                     .pad = "<|plamo:pad|>"});
  if (config.String("tokenizer_class", "") == "Plamo3Tokenizer") {
    Fail(config.where(), ": the tokenizer_class Plamo3Tokenizer is not supported.");
  }
  auto model = std::make_unique<PlamoModel>(ReadFile(path, kMaxFileBytes), path.string());
  AddedTokens added = config.ReadAddedTokens(model->vocabulary());
  PostProcessor post_processor = config.ReadPostProcessor(added);
  return {Normalizer(Json(), ""),
          PreTokenizer(Json(), ""),
          std::move(model),
          std::move(post_processor),
          Decoder([] { return std::make_unique<ByteTokensStage>(); }),
          std::move(added)};
}

}  // namespace adder::text
