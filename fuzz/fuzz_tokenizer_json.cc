// Any bytes as a tokenizer.json: either an Error, or a tokenizer that encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    const auto tokenizer = adder::text::Tokenizer::Parse(
        std::string_view(reinterpret_cast<const char*>(data), size), "tokenizer.json");
    for (bool special : {false, true}) {
      const auto ids =
          tokenizer.Encode("Hello, w\xC3\xB6rld!  42\n<s> \xF0\x9F\x98\x80\xFF", special);
      for (int32_t id : ids) {
        if (!tokenizer.HasToken(id)) __builtin_trap();
      }
      tokenizer.Decode(ids, special);
    }
  } catch (const adder::Error&) {
  }
  return 0;
}
