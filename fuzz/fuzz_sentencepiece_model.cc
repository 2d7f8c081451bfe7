// Any bytes as a SentencePiece tokenizer.model: either an Error, or a model that encodes and
// decodes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "text/sentencepiece.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using adder::text::SentencePieceFile;
  try {
    const auto file = SentencePieceFile::Parse(
        std::string_view(reinterpret_cast<const char*>(data), size), "tokenizer.model");
    const adder::text::SentencePieceModel model(file, size % 2 == 1, "tokenizer.model");
    for (const char* text : {"Once upon a time, w\xC3\xB6rld!  42\n<s> \xF0\x9F\x98\x80",
                             " \xE2\x96\x81\xE2\x96\x81  e\xCC\x81 \xEF\xAC\x81", "<0x41>"}) {
      std::vector<int32_t> ids;
      model.Tokenize(text, false, ids);
      const auto decoder = adder::text::SentencePieceDecoder(file, {}, size % 3 == 1);
      auto stream = decoder.Start();
      std::string decoded;
      for (int32_t id : ids) {
        if (!model.vocabulary().Has(id)) __builtin_trap();
        decoded += stream.Push(model.vocabulary().Token(id));
      }
      decoded += stream.Flush();
      if (!adder::text::IsValidUtf8(decoded)) __builtin_trap();
    }
  } catch (const adder::Error&) {
  }
  return 0;
}
