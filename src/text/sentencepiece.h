// SentencePiece models (tokenizer.model), for checkpoints without a tokenizer.json: encoding by
// libsentencepiece, decoding here so that it streams. Special and added tokens are treated as by
// transformers' LlamaTokenizer and GemmaTokenizer, whose files these are.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/sentencepiece_file.h"
#include "text/tokenizer_parts.h"

namespace sentencepiece {
class SentencePieceProcessor;
}  // namespace sentencepiece

namespace adder::text {

class SentencePieceModel : public TokenModel {
 public:
  // With `keep_leading_space` a piece that begins with a space keeps it, even where the model
  // removes extra whitespace. Throws Error, beginning with `where`.
  SentencePieceModel(const SentencePieceFile& file, bool keep_leading_space,
                     const std::string& where);
  ~SentencePieceModel() override;

  void Tokenize(std::string_view piece, bool raw_bytes, std::vector<int32_t>& ids) const override;

 private:
  std::vector<int32_t> Encode(std::string_view text) const;

  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  std::string where_;
  bool keep_leading_space_;
  std::string unknown_;       // the unknown token, put before a leading space to protect it
  size_t unknown_count_ = 0;  // how many ids that makes
};

// The decoder of a model; a token of `apart` (special and added ones) stands for itself, and text
// begins anew behind it. With `drop_first_space` the first token of all loses a leading space.
Decoder SentencePieceDecoder(const SentencePieceFile& file, const std::vector<AddedToken>& apart,
                             bool drop_first_space);

// Throws Error, naming file and field.
TokenizerParts ReadSentencePieceTokenizer(const std::filesystem::path& dir);

}  // namespace adder::text
