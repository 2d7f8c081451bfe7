#include "text/utf8.h"

#include <gtest/gtest.h>

namespace adder::text {
namespace {

constexpr const char* kBad = "\xEF\xBF\xBD";

TEST(Utf8, Validates) {
  EXPECT_TRUE(IsValidUtf8(""));
  EXPECT_TRUE(IsValidUtf8("plain ASCII that is longer than a word"));
  EXPECT_TRUE(IsValidUtf8("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80 \xF4\x8F\xBF\xBF"));
  EXPECT_FALSE(IsValidUtf8("\xC0\x80"));          // overlong
  EXPECT_FALSE(IsValidUtf8("\xE0\x9F\xBF"));      // overlong
  EXPECT_FALSE(IsValidUtf8("\xED\xA0\x80"));      // surrogate
  EXPECT_FALSE(IsValidUtf8("\xF4\x90\x80\x80"));  // above U+10FFFF
  EXPECT_FALSE(IsValidUtf8("12345678\xF0\x9F\x98"));
  EXPECT_FALSE(IsValidUtf8("\x80"));
}

TEST(Utf8, ReplacesMaximalStretches) {
  const std::string bad = kBad;
  EXPECT_EQ(ToValidUtf8("a\xF0\x9F\x98"
                        "b"),
            "a" + bad + "b");
  EXPECT_EQ(ToValidUtf8("\xE2\x82"), bad);
  EXPECT_EQ(ToValidUtf8("\xED\xA0\x80"), bad + bad + bad);
  EXPECT_EQ(ToValidUtf8("\xF0\x80\x80"), bad + bad + bad);
  EXPECT_EQ(ToValidUtf8("\xC3\xC3\xA9"), bad + "\xC3\xA9");
  EXPECT_EQ(ToValidUtf8("\xFF"
                        "abc\xFE"),
            bad + "abc" + bad);
}

TEST(Utf8, StreamEqualsWhole) {
  const std::string bytes = "a\xC3\xA9\xE2\x82\xF0\x9F\x98\x80\xF0\x9F\xE2\x82\xAC\xED\xA0\x80\xC3";
  for (size_t size = 1; size <= bytes.size(); ++size) {
    Utf8Stream stream;
    std::string text;
    for (size_t at = 0; at < bytes.size(); at += size) {
      stream.Push(bytes.substr(at, size), text);
      EXPECT_TRUE(IsValidUtf8(text));
    }
    stream.Flush(text);
    EXPECT_EQ(text, ToValidUtf8(bytes)) << size;
  }
}

TEST(Utf8, EncodesWhatItDecodes) {
  for (char32_t c :
       {U'\0', U'a', U'\x7F', U'\x80', U'\x7FF', U'\x800', U'\xFFFF', U'\x10000', U'\x10FFFF'}) {
    std::string text;
    AppendUtf8(c, text);
    size_t position = 0;
    EXPECT_EQ(DecodeUtf8(text, position), c);
    EXPECT_EQ(position, text.size());
  }
}

}  // namespace
}  // namespace adder::text
