// Tokenizers as the files of a checkpoint describe them: from text to ids and back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace adder::text {

class DecodeStream;

// A loaded tokenizer. Immutable: all methods may be called from several threads at once.
//
// The fields "truncation" and "padding" have no part in it: they shape batches for training.
class Tokenizer {
 public:
  // Reads the tokenizer in the model directory `dir`: tokenizer.json if there is one; otherwise
  // PLaMo-2's tokenizer.jsonl or the SentencePiece model tokenizer.model, with special tokens from
  // tokenizer_config.json. Throws Error, naming file and field, when none is there, or it is
  // malformed or needs a component that adder lacks.
  static Tokenizer Load(const std::filesystem::path& dir);

  // Whether `dir` holds a file that Load would read.
  static bool ExistsIn(const std::filesystem::path& dir);

  // Reads the contents of a tokenizer.json; `source` names it in errors.
  static Tokenizer Parse(std::string_view json, std::string_view source);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // The ids of `text`. Bytes that are not UTF-8 count as U+FFFD. Added tokens that occur in the
  // text are recognised, special ones too; `add_special_tokens` puts the post-processor's tokens
  // (such as a beginning of sequence) around the rest. Throws Error when the model has no token for
  // a part of the text, or a regular expression exceeds its limit of steps.
  std::vector<int32_t> Encode(std::string_view text, bool add_special_tokens) const;

  // The text of `ids`, always UTF-8: bytes that make no character become U+FFFD. Unknown ids are
  // left out, and with `skip_special` special tokens are.
  std::string Decode(std::span<const int32_t> ids, bool skip_special) const;

  // One more than the largest id. There may be ids without a token below it.
  int32_t vocab_size() const;
  // -1 where there is no such token.
  int32_t TokenToId(std::string_view token) const;
  // The token as a decoder sees it; empty where there is no such id.
  std::string_view IdToToken(int32_t id) const;
  bool HasToken(int32_t id) const;
  bool IsSpecial(int32_t id) const;

  // A decode that takes token strings one by one; see StreamingDetokenizer.
  DecodeStream StartDecode() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace adder::text
