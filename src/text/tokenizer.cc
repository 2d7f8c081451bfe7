#include "text/tokenizer.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "core/error.h"
#include "core/file.h"
#include "core/json.h"
#include "text/piece_cache.h"
#include "text/plamo.h"
#include "text/regex.h"
#include "text/sentencepiece.h"
#include "text/tokenizer_parts.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

constexpr const char* kJson = "tokenizer.json";
constexpr const char* kPlamo = "tokenizer.jsonl";
constexpr const char* kSentencePiece = "tokenizer.model";
constexpr const char* kFileNames[] = {kJson, kPlamo, kSentencePiece};

// Real files are below 40 MB.
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 28;

const Json& FieldOrNull(const JsonObject& file, std::string_view field) {
  static const Json null;
  const Json* found = file.Find({field});
  return found == nullptr ? null : *found;
}

JsonObject ModelObject(const JsonObject& file) {
  const std::optional<JsonObject> model = file.Object({"model"});
  if (!model) Fail(file.where(), " lacks the field model.");
  return *model;
}

TokenizerParts ReadTokenizerJson(const JsonObject& file) {
  const auto where = [&](const char* field) { return Concat(file.where(), ": ", field); };
  Normalizer normalizer(FieldOrNull(file, "normalizer"), where("normalizer"));
  PreTokenizer pre_tokenizer(FieldOrNull(file, "pre_tokenizer"), where("pre_tokenizer"));
  std::unique_ptr<TokenModel> model = TokenModel::Parse(ModelObject(file));
  PostProcessor post_processor(FieldOrNull(file, "post_processor"), where("post_processor"));
  Decoder decoder(FieldOrNull(file, "decoder"), where("decoder"));
  AddedTokens added(FieldOrNull(file, "added_tokens"), where("added_tokens"), model->vocabulary(),
                    [&](std::string_view text) {
                      std::string normalized(text);
                      normalizer.Run(normalized);
                      return normalized;
                    });
  return {std::move(normalizer),     std::move(pre_tokenizer), std::move(model),
          std::move(post_processor), std::move(decoder),       std::move(added)};
}

// What one Encode works with. Kept from call to call for the sake of its cache.
struct Workspace {
  PieceCache cache;
  SplitText pieces;
  std::vector<Segment> raw_segments;
  std::vector<Segment> segments;
};

}  // namespace

struct Tokenizer::Impl : TokenizerParts {
  // `source` names the file in errors.
  Impl(TokenizerParts parts, const std::string& source) : TokenizerParts(std::move(parts)) {
    const Vocabulary& vocabulary = model->vocabulary();
    int32_t size = vocabulary.size();
    for (const AddedToken& token : added.tokens()) size = std::max(size, token.id + 1);
    special.resize(static_cast<size_t>(size));
    added_by_id.resize(static_cast<size_t>(size));
    for (const AddedToken& token : added.tokens()) {
      const auto id = static_cast<size_t>(token.id);
      added_by_id[id] = &token;
      added_by_content.emplace(token.content, token.id);
      special[id] = token.special;
    }
    for (const auto* ids : {&post_processor.prefix(), &post_processor.suffix()}) {
      for (int32_t id : *ids) {
        if (!HasToken(id)) Fail(source, ": post_processor: the id ", id, " belongs to no token.");
      }
    }
  }

  bool HasToken(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < added_by_id.size() &&
           (added_by_id[static_cast<size_t>(id)] != nullptr || model->vocabulary().Has(id));
  }

  std::string Normalized(std::string_view text) const {
    std::string normalized(text);
    normalizer.Run(normalized);
    return normalized;
  }

  // Encodes text that holds no added token.
  void EncodeText(std::string_view text, bool at_start, Workspace& work,
                  std::vector<int32_t>& ids) const {
    work.pieces.Reset(text, at_start);
    pre_tokenizer.Run(work.pieces);
    const bool raw_bytes = pre_tokenizer.raw_bytes();
    for (size_t i = 0; i < work.pieces.size(); ++i) {
      std::string_view rest = work.pieces.Piece(i);
      while (!rest.empty()) {
        const size_t length = raw_bytes ? rest.size() : model->SafePrefix(rest);
        EncodePiece(rest.substr(0, length), raw_bytes, work.cache, ids);
        rest.remove_prefix(length);
      }
    }
  }

  void EncodePiece(std::string_view piece, bool raw_bytes, PieceCache& cache,
                   std::vector<int32_t>& ids) const {
    if (const PieceCache::Entry* entry = cache.Find(piece)) {
      ids.insert(ids.end(), entry->ids, entry->ids + entry->count);
      return;
    }
    const size_t before = ids.size();
    model->Tokenize(piece, raw_bytes, ids);
    cache.Add(piece, std::span(ids).subspan(before));
  }

  // Encodes text that holds no added token that is looked for before normalisation.
  void EncodeRaw(std::string_view text, bool at_start, Workspace& work,
                 std::vector<int32_t>& ids) const {
    std::string normalized;
    if (!normalizer.empty()) {
      normalized = Normalized(text);
      text = normalized;
    }
    added.normalized().Split(text, work.segments);
    for (const Segment& segment : work.segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else {
        EncodeText(text.substr(segment.begin, segment.end - segment.begin),
                   at_start && segment.begin == 0, work, ids);
      }
    }
  }

  void Encode(std::string_view text, Workspace& work, std::vector<int32_t>& ids) const {
    added.raw().Split(text, work.raw_segments);
    for (const Segment& segment : work.raw_segments) {
      if (segment.id >= 0) {
        ids.push_back(segment.id);
      } else {
        EncodeRaw(text.substr(segment.begin, segment.end - segment.begin), segment.begin == 0, work,
                  ids);
      }
    }
  }

  std::unique_ptr<Workspace> TakeWorkspace() {
    const std::lock_guard lock(mutex);
    if (workspaces.empty()) return std::make_unique<Workspace>();
    std::unique_ptr<Workspace> workspace = std::move(workspaces.back());
    workspaces.pop_back();
    return workspace;
  }

  void ReturnWorkspace(std::unique_ptr<Workspace> workspace) {
    const std::lock_guard lock(mutex);
    workspaces.push_back(std::move(workspace));
  }

  std::vector<const AddedToken*> added_by_id;  // null where the id is the model's alone
  std::unordered_map<std::string_view, int32_t> added_by_content;
  std::vector<bool> special;  // by id

  std::mutex mutex;  // guards workspaces
  std::vector<std::unique_ptr<Workspace>> workspaces;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

bool Tokenizer::ExistsIn(const std::filesystem::path& dir) {
  std::error_code error;
  return std::any_of(std::begin(kFileNames), std::end(kFileNames),
                     [&](const char* name) { return std::filesystem::exists(dir / name, error); });
}

Tokenizer Tokenizer::Load(const std::filesystem::path& dir) {
  const std::filesystem::path json = dir / kJson;
  std::error_code error;
  if (std::filesystem::exists(json, error)) {
    return Parse(ReadFile(json, kMaxFileBytes), json.string());
  }
  const std::filesystem::path lines = dir / kPlamo;
  if (std::filesystem::exists(lines, error)) {
    return Tokenizer(std::make_unique<Impl>(ReadPlamoTokenizer(dir), lines.string()));
  }
  const std::filesystem::path pieces = dir / kSentencePiece;
  if (std::filesystem::exists(pieces, error)) {
    return Tokenizer(std::make_unique<Impl>(ReadSentencePieceTokenizer(dir), pieces.string()));
  }
  Fail("There is no tokenizer in ", dir.string(), ": neither ", kJson, ", ", kPlamo, " nor ",
       kSentencePiece, ".");
}

Tokenizer Tokenizer::Parse(std::string_view json, std::string_view source) {
  const Json file = ParseJson(json, source);
  return Tokenizer(std::make_unique<Impl>(ReadTokenizerJson(JsonObject(file, std::string(source))),
                                          std::string(source)));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, bool add_special_tokens) const {
  std::string replaced;
  if (!IsValidUtf8(text)) {
    replaced = ToValidUtf8(text);
    text = replaced;
  }
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 4);
  if (add_special_tokens) ids = impl_->post_processor.prefix();
  std::unique_ptr<Workspace> workspace = impl_->TakeWorkspace();
  {
    const RegexTimeLimit limit(text.size());
    impl_->Encode(text, *workspace, ids);
  }
  impl_->ReturnWorkspace(std::move(workspace));
  if (add_special_tokens) {
    const std::vector<int32_t>& suffix = impl_->post_processor.suffix();
    ids.insert(ids.end(), suffix.begin(), suffix.end());
  }
  return ids;
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  DecodeStream stream = StartDecode();
  std::string text;
  for (int32_t id : ids) {
    if (!HasToken(id) || (skip_special && IsSpecial(id))) continue;
    text += stream.Push(IdToToken(id));
  }
  text += stream.Flush();
  return text;
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->special.size()); }

int32_t Tokenizer::TokenToId(std::string_view token) const {
  const auto it = impl_->added_by_content.find(token);
  return it != impl_->added_by_content.end() ? it->second : impl_->model->vocabulary().Find(token);
}

std::string_view Tokenizer::IdToToken(int32_t id) const {
  if (!HasToken(id)) return {};
  const AddedToken* token = impl_->added_by_id[static_cast<size_t>(id)];
  return token != nullptr ? token->decoded : impl_->model->vocabulary().Token(id);
}

bool Tokenizer::HasToken(int32_t id) const { return impl_->HasToken(id); }

bool Tokenizer::IsSpecial(int32_t id) const {
  return HasToken(id) && impl_->special[static_cast<size_t>(id)];
}

DecodeStream Tokenizer::StartDecode() const { return impl_->decoder.Start(); }

}  // namespace adder::text
