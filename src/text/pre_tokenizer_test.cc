#include "text/pre_tokenizer.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "text/byte_level.h"

namespace adder::text {
namespace {

std::vector<std::string> Pieces(std::string_view json, std::string_view text) {
  const PreTokenizer pre_tokenizer(ParseJson(json, "test"), "test");
  SplitText split;
  split.Reset(text, true);
  pre_tokenizer.Run(split);
  std::vector<std::string> pieces;
  for (size_t i = 0; i < split.size(); ++i) pieces.emplace_back(split.Piece(i));
  return pieces;
}

// The expected pieces are those of the tokenizers library (0.23.2).
TEST(PreTokenizer, SplitsLikeTheReference) {
  struct Case {
    std::string json;
    std::string text;
    std::vector<std::string> pieces;
  };
  const std::vector<Case> cases = {
      {R"({"type": "Split", "pattern": {"String": "-"}, "behavior": "Removed", "invert": false})",
       "a--b-c-",
       {"a", "b", "c"}},
      {R"({"type": "Split", "pattern": {"String": "-"}, "behavior": "Isolated", "invert": false})",
       "a--b-c-",
       {"a", "-", "-", "b", "-", "c", "-"}},
      {R"({"type": "Split", "pattern": {"String": "-"}, "behavior": "MergedWithPrevious", "invert": false})",
       "a--b-c-",
       {"a-", "-", "b-", "c-"}},
      {R"({"type": "Split", "pattern": {"String": "-"}, "behavior": "MergedWithNext", "invert": false})",
       "a--b-c-",
       {"a", "-", "-b", "-c", "-"}},
      {R"({"type": "Split", "pattern": {"String": "-"}, "behavior": "Contiguous", "invert": false})",
       "a--b-c-",
       {"a", "--", "b", "-", "c", "-"}},
      {R"({"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Removed", "invert": true})",
       "ab--c-1d",
       {"ab", "c", "d"}},
      {R"({"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "MergedWithPrevious", "invert": true})",
       "ab--c-1d",
       {"ab--", "c-1", "d"}},
      {R"({"type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated", "invert": false})",
       "a \xE3\x80\x80"
       "b\xE1\xA0\x8E"
       "c\xC2\x85"
       "d",
       {"a", " \xE3\x80\x80",
        "b\xE1\xA0\x8E"
        "c",
        "\xC2\x85", "d"}},
      {R"({"type": "Split", "pattern": {"Regex": "\\d{1,3}+"}, "behavior": "Isolated", "invert": false})",
       "12345a6",
       {"12345", "a", "6"}},
      {R"({"type": "Digits", "individual_digits": true})",
       "a12b\xC2\xB2\xE2\x85\xA7",
       {"a", "1", "2", "b", "\xC2\xB2", "\xE2\x85\xA7"}},
      {R"({"type": "Digits", "individual_digits": false})",
       "a12b\xC2\xB2\xE2\x85\xA7",
       {"a", "12", "b", "\xC2\xB2\xE2\x85\xA7"}},
      {R"({"type": "Punctuation", "behavior": "Isolated"})",
       "a, (b)! \xC2\xAB"
       "c\xC2\xBB$",
       {"a", ",", " ", "(", "b", ")", "!", " ", "\xC2\xAB", "c", "\xC2\xBB", "$"}},
      {R"({"type": "Punctuation", "behavior": "Contiguous"})",
       "a, (b)! \xC2\xAB"
       "c\xC2\xBB$",
       {"a", ",", " ", "(", "b", ")!", " ", "\xC2\xAB", "c", "\xC2\xBB$"}},
      {R"({"type": "Whitespace"})",
       "It's a_b  \xE2\x80\xBF"
       "c\xE2\x80\x8D"
       "d \xC3\xA9! \xE4\xB8\xAD\xE6\x96\x87\xE3\x80\x82",
       {"It", "'", "s", "a_b",
        "\xE2\x80\xBF"
        "c\xE2\x80\x8D"
        "d",
        "\xC3\xA9", "!", "\xE4\xB8\xAD\xE6\x96\x87", "\xE3\x80\x82"}},
      {R"({"type": "WhitespaceSplit"})",
       " It's\xC2\xA0"
       "a\xE2\x80\x8B"
       "b \x0A",
       {"It's",
        "a\xE2\x80\x8B"
        "b"}},
      {R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true})",
       "a b  c",
       {"\xE2\x96\x81"
        "a",
        "\xE2\x96\x81"
        "b",
        "\xE2\x96\x81",
        "\xE2\x96\x81"
        "c"}},
      {R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": true})",
       "a b  c",
       {"a",
        "\xE2\x96\x81"
        "b",
        "\xE2\x96\x81",
        "\xE2\x96\x81"
        "c"}},
      {R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": false})",
       " a b",
       {"\xE2\x96\x81"
        "a\xE2\x96\x81"
        "b"}},
      {R"({"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true}]})",
       "a b",
       {"\xE2\x96\x81"
        "a",
        "b"}},
      {R"({"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}, {"type": "Digits", "individual_digits": false}]})",
       "hi \xC3\xA9 12\x0A",
       {"\xC4\xA0hi", "\xC4\xA0\xC3\x83\xC2\xA9", "\xC4\xA0", "12", "\xC4\x8A"}},
  };
  for (const Case& item : cases) EXPECT_EQ(Pieces(item.json, item.text), item.pieces) << item.json;
}

// The expected pieces are those of the tokenizers library (0.23.2).
TEST(PreTokenizer, PunctuationFollowsItsBehavior) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"Removed", {"Hi", " a", "b", "c"}},
      {"Isolated", {"\u00ab", "Hi", "\u00bb", "!", "?", " a", ",", "b", "-", "-", "c", "."}},
      {"MergedWithPrevious", {"\u00ab", "Hi\u00bb", "!", "?", " a,", "b-", "-", "c."}},
      {"MergedWithNext", {"\u00abHi", "\u00bb", "!", "? a", ",b", "-", "-c", "."}},
      {"Contiguous", {"\u00ab", "Hi", "\u00bb!?", " a", ",", "b", "--", "c", "."}},
  };
  for (const auto& [behavior, pieces] : cases) {
    const Json step = {{"type", "Punctuation"}, {"behavior", behavior}};
    EXPECT_EQ(Pieces(step.dump(), "\u00abHi\u00bb!? a,b--c."), pieces) << behavior;
  }
}

// The expected pieces are those of the tokenizers library (0.23.2).
TEST(PreTokenizer, SplitFollowsItsBehaviorInverted) {
  using Strings = std::vector<std::string>;
  struct Case {
    std::string behavior;
    bool invert;
    Strings digits;  // of a pattern with neighbouring matches
    Strings dashes;  // of a string with matches at both ends
    Strings empty;   // of a pattern that matches the empty string
    Strings ahead;   // of one that matches only that
  };
  const Strings alone = {"1", "2", "\u00e9", "3", "-", "4", "5", ",a"};
  const Strings runs = {"12", "\u00e9", "3", "-", "45", ",a"};
  const Strings before = {"1", "2", "\u00e93", "-4", "5", ",a"};
  const Strings behind = {"1", "2\u00e9", "3-", "4", "5,a"};
  const Strings dashes_alone = {"-", "-", "a", "-", "b", "-", "-"};
  const Strings dashes_before = {"-", "-", "a-", "b-", "-"};
  const Strings dashes_behind = {"-", "-a", "-b", "-", "-"};
  const Strings letters = {"a", "b", "xx", "c", "d", "\u00e9"};
  const Strings words = {"aa", "b", "bc", "b"};
  const std::vector<Case> cases = {
      {"Removed", false, {"\u00e9", "-", ",a"}, {"a", "b"}, {"a", "b", "c", "d", "\u00e9"}, words},
      {"Removed", true, {"1", "2", "3", "4", "5"}, {"-", "-", "-", "-", "-"}, {"xx"}, {}},
      {"Isolated", false, alone, dashes_alone, letters, words},
      {"Isolated", true, alone, dashes_alone, letters, words},
      {"MergedWithPrevious", false, before, dashes_before, {"a", "bxx", "c", "d", "\u00e9"}, words},
      {"MergedWithPrevious", true, behind, dashes_behind, {"a", "b", "xxc", "d", "\u00e9"}, words},
      {"MergedWithNext", false, behind, dashes_behind, {"a", "b", "xxc", "d", "\u00e9"}, words},
      {"MergedWithNext", true, before, dashes_before, {"a", "bxx", "c", "d", "\u00e9"}, words},
      {"Contiguous", false, runs, {"--", "a", "-", "b", "--"}, letters, words},
      {"Contiguous", true, runs, {"--", "a", "-", "b", "--"}, letters, words},
  };
  for (const Case& item : cases) {
    const auto split = [&](const char* kind, const char* pattern, std::string_view text) {
      const Json step = {{"type", "Split"},
                         {"pattern", {{kind, pattern}}},
                         {"behavior", item.behavior},
                         {"invert", item.invert}};
      return Pieces(step.dump(), text);
    };
    const std::string name = Concat(item.behavior, item.invert ? " inverted" : "");
    EXPECT_EQ(split("Regex", "[0-9]", "12\u00e93-45,a"), item.digits) << name;
    EXPECT_EQ(split("String", "-", "--a-b--"), item.dashes) << name;
    EXPECT_EQ(split("Regex", "x*", "abxxcd\u00e9"), item.empty) << name;
    EXPECT_EQ(split("Regex", "(?=b)", "aabbcb"), item.ahead) << name;
  }
}

TEST(PreTokenizer, LastByteLevelLeavesBytes) {
  const Json json = ParseJson(R"({"type": "ByteLevel", "add_prefix_space": false})", "test");
  const PreTokenizer pre_tokenizer(json, "test");
  EXPECT_TRUE(pre_tokenizer.raw_bytes());
  SplitText split;
  split.Reset("it's  \xC3\xA9", false);
  pre_tokenizer.Run(split);
  ASSERT_EQ(split.size(), 4u);
  EXPECT_EQ(split.Piece(0), "it");
  EXPECT_EQ(split.Piece(1), "'s");
  EXPECT_EQ(split.Piece(2), " ");
  EXPECT_EQ(split.Piece(3), " \xC3\xA9");
}

TEST(PreTokenizer, NamesWhatItLacks) {
  const auto error = [](std::string_view json) -> std::string {
    try {
      Pieces(json, "a");
    } catch (const Error& caught) {
      return caught.what();
    }
    return "";
  };
  EXPECT_EQ(error(R"({"type": "UnicodeScripts"})"),
            "test: the pre-tokenizer type UnicodeScripts is not supported.");
  EXPECT_EQ(error(R"({"type": "Sequence", "pretokenizers": [{"type": "Punctuation",
                      "behavior": "Odd"}]})"),
            "test.pretokenizers[0]: the behavior Odd is not supported.");
  EXPECT_NE(error(R"({"type": "Split", "pattern": {"Regex": "a("}, "behavior": "Isolated"})")
                .find("test: pattern: the regular expression a( is not valid"),
            std::string::npos);
}

TEST(ByteLevelAlphabet, MapsEveryByteBack) {
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(CharacterToByte(ByteToCharacter(static_cast<uint8_t>(byte))), byte);
  }
  EXPECT_EQ(ByteToCharacter(' '), 0x120u);
  EXPECT_EQ(ByteToCharacter('\n'), 0x10Au);
  EXPECT_EQ(ByteToCharacter(0xAD), 0x143u);
  EXPECT_EQ(BytesOfCharacters("\xC4\xA0"
                              "a"),
            " a");
  EXPECT_EQ(BytesOfCharacters("a b"), std::nullopt);
}

}  // namespace
}  // namespace adder::text
