#include "text/regex.h"

#include <gtest/gtest.h>

#include <vector>

#include "core/error.h"

namespace adder::text {
namespace {

std::vector<std::string> Matches(std::string_view pattern, std::string_view text) {
  std::vector<std::string> matches;
  Regex(pattern, "test").ForEachMatch(text, [&](Range match) {
    matches.emplace_back(text.substr(match.begin, match.end - match.begin));
  });
  return matches;
}

using Strings = std::vector<std::string>;

TEST(Regex, FindsFromLeftToRight) {
  EXPECT_EQ(Matches(" ?\\p{L}+|\\d", "It is\xC3\xA9 42"), (Strings{"It", " is\xC3\xA9", "4", "2"}));
  EXPECT_EQ(Matches("\\s+(?!\\S)|\\s+", "   a "), (Strings{"  ", " ", " "}));
  EXPECT_EQ(Matches("(?i:'s)", "'s'S'\xC5\xBF"), (Strings{"'s", "'S", "'\xC5\xBF"}));
}

TEST(Regex, EmptyMatchesAdvanceByCharacters) {
  EXPECT_EQ(Matches("x*", "\xC3\xA9xx"), (Strings{"", "xx"}));
}

TEST(Regex, TranslatesTheDialect) {
  EXPECT_EQ(TranslatePattern("\\s[^\\s\\S]", "t"),
            "\\p{White_Space}[^\\p{White_Space}\\P{White_Space}]");
  EXPECT_EQ(TranslatePattern("\\h[\\h]", "t"), "[0-9a-fA-F][0-9a-fA-F]");
  EXPECT_EQ(TranslatePattern("(ab){1,2}+c", "t"), "(?:(ab){1,2})+c");
  EXPECT_EQ(TranslatePattern("x{,3}{a}", "t"), "x{0,3}{a}");
  EXPECT_EQ(TranslatePattern("(?mi:.)", "t"), "(?si:.)");
  EXPECT_EQ(TranslatePattern("\\p{Han}\\p{^Lu}\\p{Letter}", "t"), "\\p{sc:Han}\\p{^Lu}\\p{L}");
  EXPECT_EQ(TranslatePattern("\\u4e00[]a]", "t"), "\\x{4e00}[\\]a]");
  // The vowel separator is no white space since Unicode 6.3.
  EXPECT_EQ(Matches("\\s", "\xE1\xA0\x8E\xE3\x80\x80"), (Strings{"\xE3\x80\x80"}));
}

TEST(Regex, RefusesWhatItCannotTranslate) {
  for (const char* pattern : {"[a[b]]", "[a&&b]", "\\Qa\\E", "\\yx", "(*FAIL)", "(?R)", "a(", "[a",
                              "\\u12", "\\", "\\p{Nonsense}", "\\C", "x**y)"}) {
    EXPECT_THROW(Regex(pattern, "test"), Error) << pattern;
  }
  EXPECT_THROW(Regex(std::string(70000, 'a'), "test"), Error);
}

TEST(Regex, EndlessSearchIsAnError) {
  const auto error = [](const char* pattern, const std::string& text) -> std::string {
    const RegexTimeLimit limit(0);
    try {
      Matches(pattern, text);
    } catch (const Error& caught) {
      return caught.what();
    }
    return "";
  };
  EXPECT_NE(error("(a+)+$", std::string(64, 'a') + "b").find("(a+)+$"), std::string::npos);
  // No step is a backtracking one here, but each place looks at all of the rest.
  EXPECT_EQ(error("a*b", std::string(1 << 21, 'a')),
            "test: the regular expression a*b takes too long on this text.");
  EXPECT_EQ(error("(?x) a # comment", "aa"), "");
}

}  // namespace
}  // namespace adder::text
