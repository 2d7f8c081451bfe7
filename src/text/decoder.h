// Decoders: from token strings back to text, in one go or token by token.
//
// A decoder is a chain of stages through which tokens flow. A stage passes on what is final and
// keeps what a later token could still change, so that streaming and decoding at once are the same.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
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

  DecodeStream Start() const;

 private:
  using StageMaker = std::function<std::unique_ptr<DecoderStage>()>;

  void Add(const Json& value, const std::string& where);

  std::vector<StageMaker> stages_;
  GrowthBudget growth_;
};

}  // namespace adder::text
