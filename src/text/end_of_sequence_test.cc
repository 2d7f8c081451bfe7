#include "text/end_of_sequence.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "core/file.h"
#include "text/tokenizer_fixture.h"

namespace adder::text {
namespace {

class EndOfSequence : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::path(::testing::TempDir()) /
           (std::string("eos_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  void Write(const char* name, std::string_view contents) { WriteFile(dir_ / name, contents); }
  std::vector<int32_t> Read() { return EndOfSequenceIds(dir_, &tokenizer_); }

  std::filesystem::path dir_;
  Tokenizer tokenizer_ = Tokenizer::Parse(SmallByteLevelTokenizer().dump(), "tokenizer.json");
};

using Ids = std::vector<int32_t>;

TEST_F(EndOfSequence, MissingFilesSayNothing) { EXPECT_EQ(Read(), Ids{}); }

TEST_F(EndOfSequence, UnionOfAllFiles) {
  Write("generation_config.json", R"({"eos_token_id": [7, 5]})");
  Write("config.json", R"({"eos_token_id": 7, "text_config": {"eos_token_id": 9}})");
  Write("tokenizer_config.json", R"({"eos_token": "<|end|>"})");
  EXPECT_EQ(Read(), (Ids{5, 7, 9, 263}));
  EXPECT_EQ(EndOfSequenceIds(dir_, nullptr), (Ids{5, 7, 9}));
  Write("tokenizer_config.json", R"({"eos_token": {"content": "<|start|>", "lstrip": false}})");
  EXPECT_EQ(Read(), (Ids{5, 7, 9, 265}));
  Write("tokenizer_config.json", R"({"eos_token": null})");
  Write("config.json", R"({"eos_token_id": null, "text_config": null})");
  EXPECT_EQ(Read(), (Ids{5, 7}));
}

TEST_F(EndOfSequence, MalformedFieldsAreErrors) {
  for (const char* text :
       {R"({"eos_token_id": "x"})", R"({"eos_token_id": -1})", R"({"eos_token_id": [1, 2.5]})",
        R"({"eos_token_id": 3000000000})", R"([1])", R"({"eos_token_id": )"}) {
    Write("config.json", text);
    EXPECT_THROW(Read(), Error) << text;
  }
  Write("config.json", "{}");
  Write("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_THROW(Read(), Error);
  Write("tokenizer_config.json", R"({"eos_token": 5})");
  EXPECT_THROW(Read(), Error);
}

}  // namespace
}  // namespace adder::text
