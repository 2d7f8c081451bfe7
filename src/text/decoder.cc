#include "text/decoder.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>

#include "core/error.h"
#include "text/byte_level.h"
#include "text/pattern.h"
#include "text/sequence_parts.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

class SinkStage : public DecoderStage {
 public:
  explicit SinkStage(std::string* text) : text_(text) {}
  void Text(std::string_view text) override { *text_ += text; }
  void EndToken() override {}
  void Finish() override {}

 private:
  std::string* text_;
};

// Without a decoder.
class JoinStage : public DecoderStage {
 public:
  void Text(std::string_view text) override {
    BeginToken();
    next_->Text(text);
  }
  void EndToken() override {
    BeginToken();
    begun_ = false;
    next_->EndToken();
  }
  void Finish() override { next_->Finish(); }

 private:
  void BeginToken() {
    if (!begun_ && !first_) next_->Text(" ");
    begun_ = true;
    first_ = false;
  }

  bool first_ = true;
  bool begun_ = false;
};

// Byte-level characters to bytes, and all bytes together to one token.
class ByteLevelStage : public WholeTokenStage {
 public:
  void Finish() override {
    std::string text;
    stream_.Flush(text);
    next_->Text(text);
    next_->EndToken();
    next_->Finish();
  }

 protected:
  void Token(std::string_view token) override {
    std::string text;
    // A token with any other character, such as an added token, stands for itself.
    const std::optional<std::string> bytes = BytesOfCharacters(token);
    stream_.Push(bytes ? std::string_view(*bytes) : token, text);
    if (!text.empty()) next_->Text(text);
  }

 private:
  Utf8Stream stream_;
};

// Runs of tokens like <0x0A> become the text of their bytes, or one U+FFFD per byte where the run
// is not UTF-8. So a run says nothing before its end.
class ByteFallbackStage : public WholeTokenStage {
 public:
  void Finish() override {
    EmitRun();
    next_->Finish();
  }

 protected:
  void Token(std::string_view token) override {
    if (const std::optional<uint8_t> byte = ByteOfToken(token)) {
      run_.push_back(static_cast<char>(*byte));
      return;
    }
    EmitRun();
    Emit(token);
  }

 private:
  void EmitRun() {
    if (run_.empty()) return;
    if (IsValidUtf8(run_)) {
      Emit(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) Emit(kReplacementCharacter);
    }
    run_.clear();
  }

  std::string run_;
};

// All tokens become one.
class FuseStage : public DecoderStage {
 public:
  void Text(std::string_view text) override { next_->Text(text); }
  void EndToken() override {}
  void Finish() override {
    next_->EndToken();
    next_->Finish();
  }
};

// The mark of a space becomes one, and nothing in the first token if the encoder put it there.
class MetaspaceStage : public DecoderStage {
 public:
  MetaspaceStage(std::string mark, bool drop_first)
      : mark_(std::move(mark)), in_dropping_token_(drop_first) {}

  void Text(std::string_view text) override {
    std::string replaced;
    for (size_t at = 0; at < text.size();) {
      const size_t found = std::min(text.find(mark_, at), text.size());
      replaced += text.substr(at, found - at);
      if (found < text.size() && !in_dropping_token_) replaced += ' ';
      at = found + mark_.size();
    }
    next_->Text(replaced);
  }
  void EndToken() override {
    in_dropping_token_ = false;
    next_->EndToken();
  }
  void Finish() override { next_->Finish(); }

 private:
  std::string mark_;  // one character, so that it lies in one piece of text
  bool in_dropping_token_;
};

// Replaces a literal string within each token.
class ReplaceLiteralStage : public DecoderStage {
 public:
  ReplaceLiteralStage(std::string literal, std::string content)
      : literal_(std::move(literal)), content_(std::move(content)) {}

  void Text(std::string_view text) override {
    held_ += text;
    std::string replaced;
    size_t done = 0;
    for (size_t at; (at = held_.find(literal_, done)) != std::string::npos;) {
      replaced.append(held_, done, at - done);
      replaced += content_;
      done = at + literal_.size();
    }
    const std::string_view rest = std::string_view(held_).substr(done);
    // Keep the longest end that the next text could complete.
    size_t keep = std::min(rest.size(), literal_.size() - 1);
    while (keep > 0 && !literal_.starts_with(rest.substr(rest.size() - keep))) --keep;
    replaced += rest.substr(0, rest.size() - keep);
    held_.erase(0, held_.size() - keep);
    next_->Text(replaced);
  }
  void EndToken() override {
    if (!held_.empty()) next_->Text(held_);
    held_.clear();
    next_->EndToken();
  }
  void Finish() override { next_->Finish(); }

 private:
  std::string literal_;
  std::string content_;
  std::string held_;
};

class ReplacePatternStage : public WholeTokenStage {
 public:
  ReplacePatternStage(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}
  void Finish() override { next_->Finish(); }

 protected:
  void Token(std::string_view token) override { Emit(pattern_.ReplaceAll(token, content_)); }

 private:
  Pattern pattern_;
  std::string content_;
};

// Takes up to `start` and `stop` copies of a character off the ends of each token.
class StripStage : public DecoderStage {
 public:
  StripStage(std::string character, size_t start, size_t stop)
      : character_(std::move(character)), start_(start), stop_(stop), start_left_(start) {}

  void Text(std::string_view text) override {
    std::string kept;
    for (size_t position = 0; position < text.size();) {
      const size_t begin = position;
      DecodeUtf8(text, position);
      const std::string_view character = text.substr(begin, position - begin);
      if (character != character_) {
        start_left_ = 0;
        for (; held_ > 0; --held_) kept += character_;
        kept += character;
      } else if (start_left_ > 0) {
        --start_left_;
      } else if (held_ < stop_) {
        ++held_;
      } else {
        kept += character;
      }
    }
    next_->Text(kept);
  }
  void EndToken() override {
    held_ = 0;
    start_left_ = start_;
    next_->EndToken();
  }
  void Finish() override { next_->Finish(); }

 private:
  std::string character_;
  size_t start_;
  size_t stop_;
  size_t start_left_;
  size_t held_ = 0;  // copies of the character at the end so far, which may be the token's end
};

std::string OneCharacter(const JsonObject& object, std::string_view field,
                         std::optional<std::string> default_value = std::nullopt) {
  std::string text = object.String({field}, std::move(default_value));
  size_t position = 0;
  if (!text.empty()) DecodeUtf8(text, position);
  if (text.empty() || position != text.size()) {
    Fail(object.where(), ": the field ", field, " should be one character, it is \"", text, "\".");
  }
  return text;
}

}  // namespace

std::optional<uint8_t> ByteOfToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return byte;
}

DecodeStream::DecodeStream(std::vector<std::unique_ptr<DecoderStage>> stages)
    : stages_(std::move(stages)), text_(std::make_unique<std::string>()) {
  stages_.push_back(std::make_unique<SinkStage>(text_.get()));
  for (size_t i = 0; i + 1 < stages_.size(); ++i) stages_[i]->SetNext(stages_[i + 1].get());
}

std::string DecodeStream::Push(std::string_view token) {
  stages_.front()->Text(token);
  stages_.front()->EndToken();
  return std::exchange(*text_, {});
}

std::string DecodeStream::Flush() {
  stages_.front()->Finish();
  return std::exchange(*text_, {});
}

Decoder::Decoder(const Json& value, const std::string& where) {
  if (value.is_null()) {
    stages_.push_back([] { return std::make_unique<JoinStage>(); });
  } else {
    Add(value, where);
  }
}

DecodeStream Decoder::Start() const {
  std::vector<std::unique_ptr<DecoderStage>> stages;
  stages.reserve(stages_.size() + 1);
  for (const StageMaker& make : stages_) stages.push_back(make());
  return DecodeStream(std::move(stages));
}

void Decoder::Add(const Json& value, const std::string& where) {
  const JsonObject object(value, where);
  const std::string type = object.String({"type"});
  if (type == "Sequence") {
    ForEachOfSequence(object, "decoders",
                      [this](const Json& step, const std::string& place) { Add(step, place); });
  } else if (type == "ByteLevel") {
    growth_.Spend(3, where);
    stages_.push_back([] { return std::make_unique<ByteLevelStage>(); });
  } else if (type == "ByteFallback") {
    growth_.Spend(3, where);
    stages_.push_back([] { return std::make_unique<ByteFallbackStage>(); });
  } else if (type == "Fuse") {
    stages_.push_back([] { return std::make_unique<FuseStage>(); });
  } else if (type == "Metaspace") {
    const bool add_prefix = object.Bool({"add_prefix_space"}, true);
    const bool drop_first = add_prefix && object.String({"prepend_scheme"}, "always") != "never";
    std::string mark = OneCharacter(object, "replacement", "\xE2\x96\x81");
    stages_.push_back(
        [mark, drop_first] { return std::make_unique<MetaspaceStage>(mark, drop_first); });
  } else if (type == "Replace") {
    Pattern pattern(object);
    std::string content = object.String({"content"});
    growth_.Spend(pattern.Growth(content), where);
    stages_.push_back([pattern, content]() -> std::unique_ptr<DecoderStage> {
      if (pattern.literal() != nullptr) {
        return std::make_unique<ReplaceLiteralStage>(*pattern.literal(), content);
      }
      return std::make_unique<ReplacePatternStage>(pattern, content);
    });
  } else if (type == "Strip") {
    std::string character = OneCharacter(object, "content");
    const auto start = static_cast<size_t>(object.Int({"start"}, 0, INT32_MAX, 0));
    const auto stop = static_cast<size_t>(object.Int({"stop"}, 0, INT32_MAX, 0));
    stages_.push_back(
        [character, start, stop] { return std::make_unique<StripStage>(character, start, stop); });
  } else {
    Fail(where, ": the decoder type ", type, " is not supported.");
  }
}

}  // namespace adder::text
