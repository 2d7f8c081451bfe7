#include "text/sentencepiece.h"

#include <sentencepiece_processor.h>

#include <array>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "text/tokenizer_config.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{1} << 27;
constexpr std::string_view kSpaceMark = "\xE2\x96\x81";  // U+2581

// What the stages of all decodes share.
struct DecoderTables {
  std::unordered_map<std::string, SentencePieceFile::Type> types;  // but the normal ones
  std::unordered_set<std::string> apart;
  std::string unknown_surface;
  bool drop_leading_space;       // of each stretch between tokens that stand apart
  bool drop_all_leading_spaces;  // not just one
  bool drop_first_space;
};

class SentencePieceStage : public WholeTokenStage {
 public:
  explicit SentencePieceStage(std::shared_ptr<const DecoderTables> tables)
      : tables_(std::move(tables)) {}

  void Finish() override {
    EndBytes();
    next_->EndToken();
    next_->Finish();
  }

 protected:
  void Token(std::string_view token) override {
    const bool first = std::exchange(first_, false);
    const std::string key(token);
    if (tables_->apart.contains(key)) {
      EndBytes();
      next_->Text(token);
      at_start_ = true;
      return;
    }
    if (first && tables_->drop_first_space && token.starts_with(kSpaceMark)) {
      token.remove_prefix(kSpaceMark.size());
    }
    const auto found = tables_->types.find(key);
    const SentencePieceFile::Type type =
        found == tables_->types.end() ? SentencePieceFile::Type::kNormal : found->second;
    if (type == SentencePieceFile::Type::kByte) {
      bytes_ += static_cast<char>(*ByteOfToken(key));
      EmitCharacters();
      at_start_ = false;
      return;
    }
    EndBytes();
    if (type == SentencePieceFile::Type::kControl) return;
    if (type == SentencePieceFile::Type::kUnknown) {
      Show(tables_->unknown_surface);
      return;
    }
    if (at_start_ && tables_->drop_leading_space && token.starts_with(kSpaceMark)) {
      token.remove_prefix(kSpaceMark.size());
      if (!tables_->drop_all_leading_spaces) at_start_ = false;
    }
    std::string text;
    for (size_t at = 0; at < token.size();) {
      const size_t mark = std::min(token.find(kSpaceMark, at), token.size());
      text += token.substr(at, mark - at);
      if (mark < token.size()) text += ' ';
      at = mark + kSpaceMark.size();
    }
    Show(text);
  }

 private:
  void Show(std::string_view text) {
    if (text.empty()) return;
    at_start_ = false;
    next_->Text(text);
  }

  // Emits the characters at the start of bytes_ that nothing can change any more. Each byte that
  // belongs to none becomes one U+FFFD.
  void EmitCharacters() {
    std::string text;
    while (!bytes_.empty()) {
      const Utf8Unit unit = FirstUtf8Unit(bytes_);
      if (unit.kind == Utf8Kind::kIncomplete) break;
      const bool valid = unit.kind == Utf8Kind::kValid;
      const size_t length = valid ? unit.length : 1;
      text += valid ? std::string_view(bytes_).substr(0, length) : kReplacementCharacter;
      bytes_.erase(0, length);
    }
    if (!text.empty()) next_->Text(text);
  }

  void EndBytes() {
    for (size_t i = 0; i < bytes_.size(); ++i) next_->Text(kReplacementCharacter);
    bytes_.clear();
  }

  std::shared_ptr<const DecoderTables> tables_;
  std::string bytes_;     // an incomplete character, at most 3 bytes
  bool first_ = true;     // no token so far
  bool at_start_ = true;  // no text so far in this stretch
};

// Puts the mark of a space before a text.
class FirstSpaceStep : public PreTokenizerStep {
 public:
  void Run(SplitText& text) const override {
    text.Rewrite([&](size_t i, std::string& out) {
      if (text.IsFirst(i)) out += kSpaceMark;
      out += text.Piece(i);
    });
  }
};

Vocabulary PieceVocabulary(const SentencePieceFile& file) {
  Vocabulary vocabulary;
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    vocabulary.Add(piece.text, vocabulary.size());
  }
  return vocabulary;
}

bool IsGemma(const std::filesystem::path& dir) {
  const TokenizerConfig config(dir, {});
  const std::string type = config.String("tokenizer_class", "LlamaTokenizer");
  if (type == "GemmaTokenizer" || type == "GemmaTokenizerFast") return true;
  for (std::string_view known :
       {"LlamaTokenizer", "LlamaTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend"}) {
    if (type == known) return false;
  }
  Fail(config.where(), ": the tokenizer_class ", type,
       " with a tokenizer.model is not supported; save the tokenizer as tokenizer.json.");
}

}  // namespace

SentencePieceModel::SentencePieceModel(const SentencePieceFile& file, bool keep_leading_space,
                                       const std::string& where)
    : TokenModel(PieceVocabulary(file)),
      processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()),
      where_(where),
      keep_leading_space_(keep_leading_space) {
  const auto status = processor_->LoadFromSerializedProto(file.Serialize());
  if (!status.ok()) Fail(where, ": libsentencepiece refuses it: ", status.message(), ".");
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    if (piece.type == SentencePieceFile::Type::kUnknown) unknown_ = piece.text;
  }
  if (keep_leading_space) unknown_count_ = Encode(unknown_).size();
}

SentencePieceModel::~SentencePieceModel() = default;

std::vector<int32_t> SentencePieceModel::Encode(std::string_view text) const {
  if (text.size() > std::numeric_limits<int32_t>::max() / 4) {
    Fail(where_, ": a stretch of the text is longer than 512 MiB.");
  }
  std::vector<int> ids;
  const auto status = processor_->Encode(text, &ids);
  if (!status.ok()) Fail(where_, ": libsentencepiece cannot encode: ", status.message(), ".");
  return ids;
}

// `raw_bytes` cannot occur: no pre-tokenizer here makes them.
void SentencePieceModel::Tokenize(std::string_view piece, bool /*raw_bytes*/,
                                  std::vector<int32_t>& ids) const {
  if (keep_leading_space_ && (piece.starts_with(' ') || piece.starts_with(kSpaceMark))) {
    const std::vector<int32_t> all = Encode(Concat(unknown_, piece));
    const size_t skipped = all.size() >= unknown_count_ ? unknown_count_ : 0;
    ids.insert(ids.end(), all.begin() + static_cast<ptrdiff_t>(skipped), all.end());
    return;
  }
  const std::vector<int32_t> all = Encode(piece);
  ids.insert(ids.end(), all.begin(), all.end());
}

Decoder SentencePieceDecoder(const SentencePieceFile& file, const std::vector<AddedToken>& apart,
                             bool drop_first_space) {
  auto tables = std::make_shared<DecoderTables>();
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    if (piece.type == SentencePieceFile::Type::kControl ||
        piece.type == SentencePieceFile::Type::kUnknown ||
        (piece.type == SentencePieceFile::Type::kByte && ByteOfToken(piece.text))) {
      tables->types.emplace(piece.text, piece.type);
    }
  }
  for (const AddedToken& token : apart) tables->apart.insert(token.content);
  tables->unknown_surface = file.unknown_surface;
  tables->drop_leading_space = file.add_dummy_prefix || file.remove_extra_whitespaces;
  tables->drop_all_leading_spaces = file.remove_extra_whitespaces;
  tables->drop_first_space = drop_first_space;
  return Decoder([tables] { return std::make_unique<SentencePieceStage>(tables); });
}

TokenizerParts ReadSentencePieceTokenizer(const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / "tokenizer.model";
  SentencePieceFile file = SentencePieceFile::Parse(ReadFile(path, kMaxFileBytes), path.string());
  const bool gemma = IsGemma(dir);
  const SpecialTokenDefaults llama_tokens = {
      .begin = "<s>", .end = "</s>", .unknown = "<unk>", .pad = "", .add_begin = true};
  const SpecialTokenDefaults gemma_tokens = {
      .begin = "<bos>", .end = "<eos>", .unknown = "<unk>", .pad = "<pad>", .add_begin = true};
  const TokenizerConfig config(dir, gemma ? gemma_tokens : llama_tokens);
  // Since a correction that files ask for by "legacy": false, a text gets its prefix once, and not
  // again behind every special token.
  const bool legacy = gemma || config.Bool("legacy", true);
  const bool prefix = !legacy && config.Bool("add_prefix_space", true);
  if (!legacy) file.add_dummy_prefix = false;

  auto model = std::make_unique<SentencePieceModel>(file, !legacy, path.string());
  AddedTokens added = config.ReadAddedTokens(model->vocabulary());
  PostProcessor post_processor = config.ReadPostProcessor(added);
  Decoder decoder = SentencePieceDecoder(file, added.tokens(), prefix);
  const Json marks_to_spaces = {
      {"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}};
  return {Normalizer(legacy ? Json() : marks_to_spaces, path.string()),
          prefix ? PreTokenizer(std::make_unique<FirstSpaceStep>()) : PreTokenizer(Json(), ""),
          std::move(model),
          std::move(post_processor),
          std::move(decoder),
          std::move(added)};
}

}  // namespace adder::text
