#include "engine/token_lists.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace adder {
namespace {

std::string ErrorOf(const std::string& json, int64_t vocab = 100) {
  try {
    ParsePrompts(json, "prompts.json", vocab);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(TokenList, Forms) {
  const std::vector<int32_t> expected = {3, 0, 2147483647};
  EXPECT_EQ(ParseTokenList("3,0,2147483647", "--tokens"), expected);
  EXPECT_EQ(ParseTokenList(" 3 0\n2147483647 ", "--tokens"), expected);
  EXPECT_EQ(ParseTokenList("[3, 0, 2147483647]", "--tokens"), expected);
}

TEST(TokenList, NamesWhatIsWrong) {
  for (const char* bad : {"", " ", ",", "[]", "-1", "1,-2", "1.5", "1e3", "2147483648",
                          "1152921504606846976", "0x10", "one", "1;2", "[1", "+1", "[[1]]"}) {
    EXPECT_THROW(ParseTokenList(bad, "--tokens"), Error) << bad;
  }
  try {
    ParseTokenList("1,two,3", "--tokens");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("--tokens holds \"two\""), std::string::npos);
  }
}

TEST(Prompts, Reads) {
  const auto prompts =
      ParsePrompts("{\"prompts\": [[5, 0, 99], [7]]}", "prompts.json", /*vocab=*/100);
  EXPECT_EQ(prompts, (std::vector<std::vector<int32_t>>{{5, 0, 99}, {7}}));
}

TEST(Prompts, NamesThePlace) {
  EXPECT_NE(ErrorOf("{\"prompts\": [[1], [2, -3]]}").find("prompts.json: prompts[1][1] is -3"),
            std::string::npos);
  EXPECT_NE(ErrorOf("{\"prompts\": [[1], []]}").find("prompts[1] is empty"), std::string::npos);
  EXPECT_NE(ErrorOf("{\"prompts\": [[100]]}").find("ids are 0 to 99"), std::string::npos);
}

TEST(Prompts, RejectsEverythingElse) {
  std::string deep = "{\"prompts\": ";
  for (int i = 0; i < 100000; ++i) deep += '[';
  for (const std::string& bad : std::vector<std::string>{"",
                                                         "[]",
                                                         "{}",
                                                         "{\"prompts\": 1}",
                                                         "{\"prompts\": {}}",
                                                         "{\"prompts\": []}",
                                                         "{\"prompts\": [1]}",
                                                         "{\"prompts\": [[1.0]]}",
                                                         "{\"prompts\": [[1e2]]}",
                                                         "{\"prompts\": [[\"1\"]]}",
                                                         "{\"prompts\": [[true]]}",
                                                         "{\"prompts\": [[null]]}",
                                                         "{\"prompts\": [[[1]]]}",
                                                         "{\"prompts\": [[1152921504606846976]]}",
                                                         "{\"prompts\": [[18446744073709551615]]}",
                                                         "{\"prompts\": [[-9223372036854775808]]}",
                                                         "{\"prompts\": [[NaN]]}",
                                                         "{\"prompts\": [[1]], \"prompts\": [[2]]}",
                                                         "{\"prompts\": [[1]], \"more\": 1}",
                                                         "{\"prompts\": [[1]]} 1",
                                                         "{\"prompts\": [[1]",
                                                         "\xFF\xFE",
                                                         deep}) {
    EXPECT_NE(ErrorOf(bad), "") << bad.substr(0, 60);
  }
}

}  // namespace
}  // namespace adder
