// Decoders: from token strings back to text, in one go or token by token.
//
// A decoder is a chain of stages through which tokens flow. A stage passes on what is final and
// keeps what a later token could still change, so that streaming and decoding at once are the same.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "text/growth.h"

namespace adder::text {

// One stage at work on one sequence of tokens. A token arrives as any number of Text calls, each
// of valid UTF-8, and one EndToken; Finish comes once, after the last token.
class DecoderStage {
 public:
  virtual ~DecoderStage() = default;
  virtual void Text(std::string_view text) = 0;
  virtual void EndToken() = 0;
  virtual void Finish() = 0;

  void SetNext(DecoderStage* next) { next_ = next; }

 protected:
  DecoderStage* next_ = nullptr;
};

// Base of stages that need a whole token before they can say anything about it.
class WholeTokenStage : public DecoderStage {
 public:
  void Text(std::string_view text) final { token_ += text; }
  void EndToken() final {
    Token(token_);
    token_.clear();
  }

 protected:
  virtual void Token(std::string_view token) = 0;

  void Emit(std::string_view token) {
    next_->Text(token);
    next_->EndToken();
  }

 private:
  std::string token_;
};

// The byte that a token such as <0x0A> stands for, or nothing.
std::optional<uint8_t> ByteOfToken(std::string_view token);

// A decode in progress.
class DecodeStream {
 public:
  // `stages` in order, without the sink at the end.
  explicit DecodeStream(std::vector<std::unique_ptr<DecoderStage>> stages);

  // Returns the text that is final once `token` was added. Always whole characters.
  std::string Push(std::string_view token);
  // Ends the stream and returns the rest of the text.
  std::string Flush();

 private:
  std::vector<std::unique_ptr<DecoderStage>> stages_;
  std::unique_ptr<std::string> text_;  // what the sink has received; its address stays put
};

// The "decoder" of a tokenizer.json: ByteLevel, Metaspace, ByteFallback, Fuse, Replace, Strip, or a
// Sequence of them.
class Decoder {
 public:
  // Null gives the decoder that joins tokens by spaces. Throws Error for other types.
  Decoder(const Json& value, const std::string& where);

  // One stage, made anew for each decode.
  using StageMaker = std::function<std::unique_ptr<DecoderStage>()>;
  explicit Decoder(StageMaker make) { stages_.push_back(std::move(make)); }

  DecodeStream Start() const;

 private:
  void Add(const Json& value, const std::string& where);

  std::vector<StageMaker> stages_;
  GrowthBudget growth_;
};

}  // namespace adder::text
