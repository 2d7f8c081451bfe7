#include "text/split_regex.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "core/error.h"
#include "text/regex_classes.h"
#include "text/utf8.h"

namespace adder::text {
namespace {

template <class Splitter>
std::vector<std::string> Matches(const Splitter& splitter, std::string_view text) {
  std::vector<std::string> matches;
  splitter.ForEachMatch(text, [&](Range match) {
    matches.emplace_back(text.substr(match.begin, match.end - match.begin));
  });
  return matches;
}

// Texts of fragments that the patterns treat differently, in runs, and of arbitrary characters.
class RandomTexts {
 public:
  std::string Next() {
    std::string text;
    for (size_t runs = Below(8) + 1; runs > 0; --runs) {
      const std::vector<std::string>& pool = kPools[Below(std::size(kPools))];
      for (size_t left = Below(4) + 1; left > 0; --left) text += pool[Below(pool.size())];
      if (Below(6) == 0) AppendUtf8(AnyCharacter(), text);
    }
    return text;
  }

 private:
  size_t Below(size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random_);
  }

  char32_t AnyCharacter() {
    // All planes, but mostly where most characters are assigned.
    const size_t limits[] = {0x80, 0x600, 0x3000, 0x10000, 0x20000, 0x110000};
    const auto c = static_cast<char32_t>(Below(limits[Below(std::size(limits))]));
    return c >= 0xD800 && c <= 0xDFFF ? U' ' : c;
  }

  const std::vector<std::string> kPools[9] = {
      {"a", "e", "s", "t", "ll", "re", "I", "The", "word", "XML"},
      {"'", "'s", "'S", "'t", "'re", "'RE", "'Ve", "'m", "'ll", "'lL", "'d", "'x", "'r", "'\u017f"},
      {" ", "  ", "\t", "\u00a0", "\u3000", "\u2028", "\u0085", "\u180e", "\u200b", "\x0b"},
      {"\n", "\r", "\r\n", " \n", "\n ", "\f"},
      {"0", "1", "42", "12345", "\u0663", "\u00b2", "\u2167", "\u0be7", "\U0001d7d8"},
      {".", ",", "!", "/", "//", "-", "_", "(", "\"", "\u2019", "\u00ab", "$", "\u20ac", "\u3002"},
      {"\u00e9", "\u00c9", "\u00df", "\u01c5", "\u02b0", "\u00aa", "\u0416", "\u0436", "\u03a3",
       "\u0e01", "\u4e2d", "\u65e5", "\u3042", "\uac00", "\u0627", "\U00020000", "\U00010400"},
      {"\u0301", "\u0308", "\u093f", "\u0e31", "\u20dd", "\u0903", "\ufe0f", "\U0001d165"},
      {"\U0001f600", "\u200d", "\U0001f468\u200d\U0001f469", "\ufffd", "\u0378", "\ue000",
       std::string(1, '\0'), "\x7f"},
  };
  std::mt19937_64 random_{20261129};
};

TEST(SplitRegex, MatchersAgreeWithTheRegularExpressions) {
  constexpr int kTexts = 40'000;
  for (const WordPattern& known : KnownWordPatterns()) {
    const Regex regex(known.pattern, "test");
    const SplitRegex splitter(known.pattern, "test");
    RandomTexts texts;
    size_t pieces = 0;
    for (int i = 0; i < kTexts; ++i) {
      const std::string text = texts.Next();
      const std::vector<std::string> expected = Matches(regex, text);
      ASSERT_EQ(Matches(splitter, text), expected) << known.pattern << "\n" << text;
      pieces += expected.size();
    }
    EXPECT_GT(pieces, size_t{5 * kTexts}) << known.pattern;
  }
}

TEST(SplitRegex, ClassesAreThoseOfTheRegularExpressions) {
  // Every character alone, between letters, and behind a space: the matchers see its classes.
  std::string text;
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c <= 0xDFFF) continue;
    AppendUtf8(c, text);
    text += c % 2 == 0 ? "a" : " ";
  }
  for (const WordPattern& known : KnownWordPatterns()) {
    EXPECT_EQ(Matches(SplitRegex(known.pattern, "test"), text),
              Matches(Regex(known.pattern, "test"), text))
        << known.pattern;
  }
  for (char32_t c = 0; c < 0x80; ++c) {
    EXPECT_EQ(character_class_table.Of(c), kByteClasses[c]) << static_cast<int>(c);
  }
}

TEST(SplitRegex, SplitsAsItsPatternsSay) {
  using Strings = std::vector<std::string>;
  const auto split = [](size_t known, std::string_view text) {
    return Matches(SplitRegex(KnownWordPatterns()[known].pattern, "test"), text);
  };
  const std::string text = "I'VE  seen 12345 XMLfiles//\n\n it's  ";
  EXPECT_EQ(split(0, text), (Strings{"I", "'", "VE", " ", " seen", " 12345", " XMLfiles", "//",
                                     "\n\n", " it", "'s", "  "}));
  EXPECT_EQ(split(1, text), (Strings{"I", "'VE", " ", " seen", " ", "123", "45", " XMLfiles",
                                     "//\n\n", " it", "'s", "  "}));
  EXPECT_EQ(split(2, text), (Strings{"I", "'VE", " ", " seen", " ", "1", "2", "3", "4", "5",
                                     " XMLfiles", "//\n\n", " it", "'s", "  "}));
  EXPECT_EQ(split(4, text), (Strings{"I'VE", " ", " seen", " ", "123", "45", " XMLfiles", "//\n\n",
                                     " it's", "  "}));
  // Only Qwen 3.5 counts marks as letters.
  EXPECT_EQ(split(2, "ab\u0301c"), (Strings{"ab", "\u0301c"}));
  EXPECT_EQ(split(3, "ab\u0301c"), (Strings{"ab\u0301c"}));
  EXPECT_EQ(split(1, ""), (Strings{}));
}

TEST(SplitRegex, OtherPatternsAreSearchedFor) {
  EXPECT_EQ(FindWordMatcher("\\p{L}+"), nullptr);
  EXPECT_EQ(Matches(SplitRegex("\\p{L}+", "test"), "ab, c"), (std::vector<std::string>{"ab", "c"}));
  EXPECT_THROW(SplitRegex("(", "test"), Error);
}

}  // namespace
}  // namespace adder::text
