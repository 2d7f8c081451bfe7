// Any bytes as text for a fixed byte-level tokenizer: valid UTF-8 comes back as it was, and
// streaming gives the same as decoding at once.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_fixture.h"
#include "text/utf8.h"

namespace {

using adder::text::StreamingDetokenizer;
using adder::text::Tokenizer;

void CheckDecode(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                 const std::string& expected) {
  StreamingDetokenizer detokenizer(tokenizer, false);
  std::string streamed;
  for (int32_t id : ids) {
    streamed += detokenizer.Push(id);
    if (!adder::text::IsValidUtf8(streamed)) __builtin_trap();
  }
  streamed += detokenizer.Flush();
  if (tokenizer.Decode(ids, false) != expected || streamed != expected) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizer =
      Tokenizer::Parse(adder::text::SmallByteLevelTokenizer().dump(), "tokenizer.json");
  const std::string text(reinterpret_cast<const char*>(data), size);
  CheckDecode(tokenizer, tokenizer.Encode(text, false), adder::text::ToValidUtf8(text));

  // The same bytes as ids.
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < size; i += 2) ids.push_back((data[i] << 8 | data[i + 1]) % 300);
  CheckDecode(tokenizer, ids, tokenizer.Decode(ids, false));
  return 0;
}
