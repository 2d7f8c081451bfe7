#include "text/decoder.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace adder::text {
namespace {

struct Case {
  std::string json;
  std::vector<std::string> tokens;
  std::string text;
};

// The expected texts are those of the tokenizers library (0.23.2).
TEST(Decoder, DecodesLikeTheReference) {
  const std::vector<Case> cases = {
      {R"(null)", {"a", "b"}, "a b"},
      {R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})",
       {"\xC4\xA0"
        "a",
        "\xC3\x83", "\xC2\xA9", "\xC3\x90", "b", "<x y>", "\xC3\xB0", "\xC5\x81"},
       " a\xC3\xA9\xEF\xBF\xBD"
       "b<x y>\xEF\xBF\xBD"},
      {R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})",
       {"\xE2\x96\x81"
        "a\xE2\x96\x81"
        "b",
        "\xE2\x96\x81"
        "c"},
       "ab c"},
      {R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true})",
       {"\xE2\x96\x81"
        "a",
        "\xE2\x96\x81"
        "b"},
       " a b"},
      {R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]})",
       {"\xE2\x96\x81"
        "a",
        "<0xC3>", "<0xA9>", "b", "<0xE2>", "<0x82>",
        "\xE2\x96\x81\xE2\x96\x81"
        "c",
        "<0xF0>"},
       "a\xC3\xA9"
       "b\xEF\xBF\xBD\xEF\xBF\xBD  c\xEF\xBF\xBD"},
      {R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "abc"}, "content": "-"}]})",
       {"xa", "b", "c", "ab", "ab", "c"},
       "x-ab-"},
      {R"({"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"Regex": "[0-9]+"}, "content": "#"}]})",
       {"a12", "34"},
       "a##"},
      {R"({"type": "Strip", "content": "_", "start": 1, "stop": 2})",
       {"__a___", "_b", "c_"},
       "_a_bc"},
  };
  for (const Case& item : cases) {
    const Decoder decoder(ParseJson(item.json, "test"), "test");
    DecodeStream stream = decoder.Start();
    std::string text;
    for (const std::string& token : item.tokens) text += stream.Push(token);
    text += stream.Flush();
    EXPECT_EQ(text, item.text) << item.json;
  }
}

TEST(Decoder, HoldsBackOnlyWhatMayChange) {
  const Decoder bytes(ParseJson(R"({"type": "ByteLevel"})", "test"), "test");
  DecodeStream stream = bytes.Start();
  EXPECT_EQ(stream.Push("a"), "a");
  EXPECT_EQ(stream.Push("\xC3\x83"), "");          // byte C3
  EXPECT_EQ(stream.Push("\xC2\xA9"), "\xC3\xA9");  // byte A9 completes U+00E9
  EXPECT_EQ(stream.Push("\xC3\xB0"), "");          // byte F0
  EXPECT_EQ(stream.Push("b"),
            "\xEF\xBF\xBD"
            "b");  // cannot be completed any more
  EXPECT_EQ(stream.Push("\xC3\xB0"), "");
  EXPECT_EQ(stream.Flush(), "\xEF\xBF\xBD");

  const Decoder fallback(ParseJson(R"({"type": "ByteFallback"})", "test"), "test");
  DecodeStream runs = fallback.Start();
  EXPECT_EQ(runs.Push("<0xC3>"), "");
  EXPECT_EQ(runs.Push("<0xA9>"), "");
  EXPECT_EQ(runs.Push("x"), "\xC3\xA9x");
  EXPECT_EQ(runs.Push("<0xG1>"), "<0xG1>");
  EXPECT_EQ(runs.Flush(), "");
}

TEST(Decoder, NamesWhatItLacks) {
  try {
    Decoder(ParseJson(R"({"type": "CTC"})", "test"), "test: decoder");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "test: decoder: the decoder type CTC is not supported.");
  }
}

}  // namespace
}  // namespace adder::text
