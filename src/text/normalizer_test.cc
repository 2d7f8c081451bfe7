#include "text/normalizer.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file.h"
#include "text/precompiled.h"
#include "text/sentencepiece_file.h"
#include "text/unicode.h"

namespace adder::text {
namespace {

std::string Rewritten(std::string_view json, std::string text) {
  Normalizer(ParseJson(json, "test"), "test").Run(text);
  return text;
}

// The expected texts are those of the tokenizers library (0.23.2).
TEST(Normalizer, RewritesLikeTheReference) {
  struct Case {
    std::string json;
    std::string text;
    std::string normalized;
  };
  const std::vector<Case> cases = {
      {R"({"type": "NFC"})", "e\xCC\x81\xCC\xA3 \xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8 \xE2\x84\xAB",
       "\xE1\xBA\xB9\xCC\x81 \xEA\xB0\x81 \xC3\x85"},
      {R"({"type": "NFD"})", "\xE1\xBB\x87 \xEA\xB0\x81",
       "e\xCC\xA3\xCC\x82 \xE1\x84\x80\xE1\x85\xA1\xE1\x86\xA8"},
      {R"({"type": "NFKC"})", "\xEF\xAC\x81 \xE2\x91\xA0 \xEF\xBD\xB6\xEF\xBE\x9E",
       "fi 1 \xE3\x82\xAC"},
      {R"({"type": "NFKD"})", "\xEF\xAC\x81 \xC3\xA9", "fi e\xCC\x81"},
      {R"({"type": "Lowercase"})", "\xC3\x80\xC4\xB0\xCE\xA3\xE1\xBA\x9E\xC7\x85",
       "\xC3\xA0i\xCC\x87\xCF\x83\xC3\x9F\xC7\x86"},
      {R"({"type": "Strip", "strip_left": true, "strip_right": false})", "\xE3\x80\x80 a \x0A",
       "a \x0A"},
      {R"({"type": "Strip", "strip_left": true, "strip_right": true})", " \x09 ", ""},
      {R"({"type": "StripAccents"})",
       "e\xCC\x81"
       "a\xE0\xA4\x83",
       "ea"},
      {R"({"type": "Replace", "pattern": {"String": "ab"}, "content": "x"})", "ababa", "xxa"},
      {R"({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})", "a   b  c",
       "a b c"},
      {R"({"type": "Prepend", "prepend": "▁"})", "a",
       "\xE2\x96\x81"
       "a"},
      {R"({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}, {"type": "Lowercase"}]})",
       "\xC3\x89"
       "a",
       "ea"},
  };
  for (const Case& item : cases)
    EXPECT_EQ(Rewritten(item.json, item.text), item.normalized) << item.json;
}

TEST(Normalizer, EmptyTextGetsNoPrefix) {
  EXPECT_EQ(Rewritten(R"({"type": "Prepend", "prepend": "_"})", ""), "");
}

TEST(Normalizer, ManyMarksTakeLinearTime) {
  // Marks of classes 230 and 220 by turns: each has to move past all of the others.
  std::string text = "a";
  for (int i = 0; i < 200000; ++i) text += "\xCC\x80\xCC\x96";
  const std::string sorted = Rewritten(R"({"type": "NFD"})", text);
  EXPECT_EQ(sorted.size(), text.size());
  EXPECT_EQ(sorted.substr(0, 5), "a\xCC\x96\xCC\x96");
  EXPECT_TRUE(sorted.ends_with("\xCC\x80\xCC\x80"));
}

TEST(Normalizer, KeepsToTheUnicodeVersionOfTheReference) {
  // U+0EBA is a mark of class 9 only since Unicode 12 and does not move before U+0EC8 (class 122).
  EXPECT_EQ(Rewritten(R"({"type": "NFC"})", "\xE0\xBB\x88\xE0\xBA\xBA"),
            "\xE0\xBB\x88\xE0\xBA\xBA");
  EXPECT_EQ(Rewritten(R"({"type": "NFC"})", "\xE0\xBB\x88\xE0\xBA\xB8"),
            "\xE0\xBA\xB8\xE0\xBB\x88");
  // U+1F16C "MR" came with Unicode 12, U+1F16B "MD" long before.
  EXPECT_EQ(Rewritten(R"({"type": "NFKC"})", "\xF0\x9F\x85\xAC\xF0\x9F\x85\xAB"),
            "\xF0\x9F\x85\xACMD");
  EXPECT_FALSE(IsPunctuation(0xC84));
  EXPECT_TRUE(IsPunctuation(0x166D));
  EXPECT_TRUE(IsPunctuation(0x2E42));
  EXPECT_FALSE(IsPunctuation(0x2E43));
  EXPECT_FALSE(IsMark(0x7FD));
  EXPECT_TRUE(IsMark(0x1CF2));
}

TEST(Normalizer, NamesWhatItLacks) {
  try {
    Rewritten(R"({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]})", "");
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "test.normalizers[1]: the normalizer type Nmt is not supported.");
  }
}

TEST(PrecompiledMap, RefusesDamagedMaps) {
  for (const char* base64 : {"", "AAAA", "!!!!", "/////wAA", "BAAAAA==", "AwAAAAAAAAAA"}) {
    EXPECT_THROW(PrecompiledMap(base64, "test"), Error) << base64;
  }
}

std::string Base64(std::string_view bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t bits = 0;
    for (size_t k = 0; k < 3; ++k) {
      bits = bits << 8 | (i + k < bytes.size() ? static_cast<uint8_t>(bytes[i + k]) : 0);
    }
    for (int shift = 18; shift >= 0; shift -= 6) text += kDigits[bits >> shift & 63];
  }
  text.resize((bytes.size() * 4 + 2) / 3);
  return text;
}

TEST(PrecompiledMap, AppliesAMapThatSentencePieceMade) {
  // Rules: A to a, U+00E9 to e, U+FB01 to fi, e U+0301 to e, U+200B to nothing, U+3000 to a space.
  const std::string path =
      std::string(ADDER_SOURCE_DIR) + "/fuzz/corpus/fuzz_sentencepiece_model/unigram_rules";
  const std::string charsmap = SentencePieceFile::Parse(ReadFile(path), path).charsmap;
  CheckCharsmap(charsmap, "test");
  const Json json = {{"type", "Precompiled"}, {"precompiled_charsmap", Base64(charsmap)}};
  EXPECT_EQ(Rewritten(json.dump(), "AB\xC3\xA9 \xEF\xAC\x81 e\xCC\x81x\xE2\x80\x8By\xE3\x80\x80z"),
            "aBe fi exy z");
  for (size_t i = 0; i < charsmap.size(); i += 3) {
    std::string damaged = charsmap;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
    try {
      CheckCharsmap(damaged, "test");
    } catch (const Error&) {
    }
  }
  EXPECT_THROW(CheckCharsmap(charsmap.substr(0, charsmap.size() - 1), "test"), Error);
  EXPECT_THROW(CheckCharsmap(charsmap.substr(0, 4), "test"), Error);
}

TEST(Unicode, Graphemes) {
  EXPECT_EQ(FirstGrapheme("ab"), 1u);
  EXPECT_EQ(FirstGrapheme("e\xCC\x81x"), 3u);
  EXPECT_EQ(FirstGrapheme("\r\n"), 2u);
}

}  // namespace
}  // namespace adder::text
