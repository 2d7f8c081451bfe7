#include "text/stop_strings.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace adder::text {
namespace {

struct Result {
  std::string text;
  std::optional<size_t> found;
};

Result Match(const std::vector<std::string>& stops, const std::string& text, size_t piece) {
  StopMatcher matcher(stops);
  std::string shown;
  for (size_t at = 0; at < text.size() && !matcher.found(); at += piece) {
    shown += matcher.Push(text.substr(at, piece));
  }
  shown += matcher.Flush();
  return {shown, matcher.found()};
}

TEST(StopMatcher, PiecesDoNotMatter) {
  struct Case {
    std::vector<std::string> stops;
    std::string text;
    std::string shown;
    std::optional<size_t> found;
  };
  const std::vector<Case> cases = {
      {{"END"}, "one ENDtwo", "one ", 0},
      {{"END"}, "one EN", "one EN", std::nullopt},
      {{"END"}, "EENEND", "EEN", 0},
      {{"aab"}, "aaab", "a", 0},
      {{"abcab", "ca"}, "xabcab", "xab", 1},  // "ca" is complete first
      {{"b", "ab"}, "xab", "x", 1},           // the longer of two that end together
      {{"\n\nUser:", "\n\n\n"}, "hi\n\n\nUser:", "hi", 1},
      {{"\xF0\x9F\x98\x80"}, "a\xF0\x9F\x98\x81\xF0\x9F\x98\x80z", "a\xF0\x9F\x98\x81", 0},
      {{}, "anything", "anything", std::nullopt},
  };
  for (const Case& item : cases) {
    for (size_t piece = 1; piece <= item.text.size(); ++piece) {
      const Result result = Match(item.stops, item.text, piece);
      EXPECT_EQ(result.text, item.shown) << item.text << " by " << piece;
      EXPECT_EQ(result.found, item.found) << item.text << " by " << piece;
    }
  }
}

TEST(StopMatcher, HoldsBackOnlyAPossibleBeginning) {
  StopMatcher matcher({"</s>", "stop"});
  EXPECT_EQ(matcher.Push("text <"), "text ");
  EXPECT_EQ(matcher.Push("/"), "");
  EXPECT_EQ(matcher.Push("p> s"), "</p> ");
  EXPECT_EQ(matcher.Push("t"), "");
  EXPECT_EQ(matcher.Push("st"), "st");
  EXPECT_EQ(matcher.Push("op and more"), "");
  EXPECT_EQ(matcher.found(), 1u);
  EXPECT_EQ(matcher.Push("later"), "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, EmptyStopStringIsAnError) { EXPECT_THROW(StopMatcher({"a", ""}), Error); }

}  // namespace
}  // namespace adder::text
