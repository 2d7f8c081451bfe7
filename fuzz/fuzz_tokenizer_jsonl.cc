// Any bytes as lines of a tokenizer.jsonl behind those of the byte tokens: either an Error, or a
// model whose ids spell the text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/error.h"
#include "text/plamo.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::string byte_lines = [] {
    std::string lines;
    for (int byte = 0; byte < 256; ++byte) {
      lines += adder::Concat("[\"", adder::text::ByteTokenName(static_cast<uint8_t>(byte)),
                             "\", 0.0, \"BYTE\"]\n");
    }
    return lines;
  }();
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    adder::text::PlamoModel(bytes, "tokenizer.jsonl");
  } catch (const adder::Error&) {
  }
  try {
    const adder::text::PlamoModel model(byte_lines + std::string(bytes), "tokenizer.jsonl");
    const std::string text = "Hello, w\xC3\xB6rld!  42\n<0x41> aaaaaaaaaaaaaaa\xF0\x9F\x98\x80";
    std::vector<int32_t> ids;
    model.Tokenize(text, false, ids);
    std::string spelled;
    for (int32_t id : ids) {
      if (id < 256) {
        spelled += static_cast<char>(id);
      } else {
        spelled += model.vocabulary().Token(id);
      }
    }
    if (spelled != text) __builtin_trap();
  } catch (const adder::Error&) {
  }
  return 0;
}
