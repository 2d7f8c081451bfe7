// Detokenisation token by token, as text is generated.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <utility>

#include "text/decoder.h"
#include "text/tokenizer.h"

namespace adder::text {

// What Push and Flush return, joined, equals Tokenizer::Decode of all the ids. Each piece is whole
// characters and final: an incomplete character is held back until later tokens complete it or make
// that impossible (then it is U+FFFD).
class StreamingDetokenizer {
 public:
  // `tokenizer` must outlive this. The special tokens in `shown` are not skipped.
  StreamingDetokenizer(const Tokenizer& tokenizer, bool skip_special, std::set<int32_t> shown = {})
      : tokenizer_(&tokenizer),
        skip_special_(skip_special),
        shown_(std::move(shown)),
        stream_(tokenizer.StartDecode()) {}

  // The text that became final by one more token; often empty.
  std::string Push(int32_t id);
  // Ends the sequence and returns what was held back. Afterwards a new sequence may begin.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::set<int32_t> shown_;
  DecodeStream stream_;
};

}  // namespace adder::text
