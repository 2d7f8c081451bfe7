// Runs every tokenizer of the conformance kit against its expected ids and texts.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "core/json.h"
#include "text/detokenizer.h"
#include "text/kit_for_test.h"
#include "text/tokenizer.h"

namespace adder::text {
namespace {

std::string Stream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special) {
  StreamingDetokenizer detokenizer(tokenizer, skip_special);
  std::string text;
  for (int32_t id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Flush();
}

TEST(TokenizerConformance, EveryTokenizerOfTheKit) {
  const std::filesystem::path kit = SharedFolder(ADDER_SOURCE_DIR) / "conformance" / "tokenizers";
  if (!std::filesystem::is_directory(kit)) {
    GTEST_SKIP() << "There is no conformance kit at " << kit << "; set ADDER_SHARED.";
  }
  int tokenizers = 0;
  for (const auto& entry : std::filesystem::directory_iterator(kit)) {
    SCOPED_TRACE(entry.path().filename().string());
    const Tokenizer tokenizer = Tokenizer::Load(entry.path());
    const Json expected = ReadJsonFile((entry.path() / "expected.json").string());
    EXPECT_EQ(tokenizer.vocab_size(), expected["vocab_size_with_added"].get<int32_t>());
    for (const Json& item : expected["cases"]) {
      const auto text = item["text"].get<std::string>();
      SCOPED_TRACE(text);
      const auto ids = item["ids"].get<std::vector<int32_t>>();
      const auto plain_ids = item["ids_no_special"].get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer.Encode(text, true), ids);
      EXPECT_EQ(tokenizer.Encode(text, false), plain_ids);
      EXPECT_EQ(tokenizer.Decode(plain_ids, false), item["decoded"].get<std::string>());
      EXPECT_EQ(tokenizer.Decode(ids, true), item["decoded_skip_special"].get<std::string>());
      EXPECT_EQ(Stream(tokenizer, plain_ids, false), item["decoded"].get<std::string>());
      EXPECT_EQ(Stream(tokenizer, ids, true), item["decoded_skip_special"].get<std::string>());
    }
    for (const Json& item : expected["prefix_decodes"]) {
      const auto ids = item["ids"].get<std::vector<int32_t>>();
      EXPECT_EQ(tokenizer.Decode(ids, false), item["decoded"].get<std::string>());
      EXPECT_EQ(Stream(tokenizer, ids, false), item["decoded"].get<std::string>());
    }
    ++tokenizers;
  }
  EXPECT_GT(tokenizers, 0);
}

}  // namespace
}  // namespace adder::text
