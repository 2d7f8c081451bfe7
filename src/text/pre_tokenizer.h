// Pre-tokenizers: the split of normalised text into the pieces that the model sees one by one.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "text/regex.h"

namespace adder::text {

// Text on its way through the pre-tokenizers: valid UTF-8 and the pieces it is split into, in
// order.
class SplitText {
 public:
  // One piece: all of `text`, which must stay alive and is not copied. `at_start` says that it
  // begins where the whole input began.
  void Reset(std::string_view text, bool at_start);

  std::string_view Piece(size_t i) const {
    return text_.substr(pieces_[i].begin, pieces_[i].end - pieces_[i].begin);
  }
  size_t size() const { return pieces_.size(); }
  // Whether piece `i` begins where the whole input began.
  bool IsFirst(size_t i) const { return at_start_ && pieces_[i].begin == 0; }

  // Gives each piece i the new text that append(i, text) appends.
  template <class Append>
  void Rewrite(Append append) {
    std::string rewritten;
    rewritten.reserve(text_.size() + text_.size() / 4);
    for (size_t i = 0; i < pieces_.size(); ++i) {
      const size_t begin = rewritten.size();
      append(i, rewritten);
      pieces_[i] = {begin, rewritten.size()};
    }
    storage_ = std::move(rewritten);
    text_ = storage_;
  }

  std::string_view text() const { return text_; }
  const std::vector<Range>& pieces() const { return pieces_; }
  // `pieces` are ranges of text(); taken by swapping.
  void SwapPieces(std::vector<Range>& pieces) { pieces_.swap(pieces); }

 private:
  std::string_view text_;
  std::string storage_;  // of text_, once rewritten
  std::vector<Range> pieces_;
  bool at_start_ = false;
};

class PreTokenizerStep {
 public:
  virtual ~PreTokenizerStep() = default;
  virtual void Run(SplitText& text) const = 0;
};

// The "pre_tokenizer" of a tokenizer.json: ByteLevel, Split, Digits, Metaspace, Punctuation,
// Whitespace, WhitespaceSplit, or a Sequence of them.
class PreTokenizer {
 public:
  // Null gives the pre-tokenizer that splits nothing. Throws Error for other types.
  PreTokenizer(const Json& value, const std::string& where);
  explicit PreTokenizer(std::unique_ptr<PreTokenizerStep> step) {
    steps_.push_back(std::move(step));
  }

  // Whether the pieces stand for byte-level characters: a ByteLevel at the end leaves bytes as they
  // are, for the model to map.
  bool raw_bytes() const { return raw_bytes_; }
  void Run(SplitText& text) const {
    for (const auto& step : steps_) step->Run(text);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizerStep>> steps_;
  bool raw_bytes_ = false;
};

}  // namespace adder::text
