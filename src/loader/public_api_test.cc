// The public header alone: what an embedding program sees.
#include "adder/adder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

namespace adder {
namespace {

class PublicApi : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(std::string(kDirectory) + "/model.safetensors")) {
      GTEST_SKIP() << "no demo model at " << kDirectory;
    }
  }
  static GenerateOptions Greedy(int64_t tokens) {
    GenerateOptions options;
    options.max_tokens = tokens;
    options.temperature = 0.0f;
    options.ignore_end = true;
    return options;
  }
  static std::vector<int32_t> Ids(TokenStream stream) {
    std::vector<int32_t> ids;
    while (std::optional<Token> token = stream.Next()) ids.push_back(token->id);
    return ids;
  }
  static constexpr const char* kDirectory = ADDER_SOURCE_DIR "/models/demo";
};

TEST_F(PublicApi, StreamsTextThatDecodesFromItsTokens) {
  Model model = Model::Load(kDirectory, {.threads = 1, .exact = true});
  EXPECT_EQ(model.family(), "granitemoehybrid");
  Session session = model.NewSession();
  TokenStream stream = session.Generate("Once upon a time", Greedy(12));
  EXPECT_EQ(stream.stop_reason(), StopReason::kNotFinished);
  std::string text;
  std::vector<int32_t> ids;
  while (std::optional<Token> token = stream.Next()) {
    ids.push_back(token->id);
    text += token->text;
  }
  EXPECT_EQ(stream.stop_reason(), StopReason::kMaxTokens);
  ASSERT_EQ(ids.size(), 12u);
  EXPECT_EQ(text, model.Decode(ids));
  std::vector<int32_t> all = model.Encode("Once upon a time");
  all.insert(all.end(), ids.begin(), ids.end());
  EXPECT_EQ(session.tokens(), all);
}

TEST_F(PublicApi, ForkContinuesAsTheOriginalDoes) {
  Model model = Model::Load(kDirectory, {.threads = 1, .exact = true});
  Session session = model.NewSession();
  Ids(session.Generate("The king", Greedy(4)));
  Session fork = session.Fork();
  const std::vector<int32_t> prompt = {5, 9};
  const std::vector<int32_t> first = Ids(session.Generate(prompt, Greedy(6)));
  EXPECT_EQ(Ids(fork.Generate(prompt, Greedy(6))), first);
  session.Reset();
  EXPECT_TRUE(session.tokens().empty());
  EXPECT_EQ(fork.tokens().size(), model.Encode("The king").size() + 4 + 2 + 6);
}

TEST_F(PublicApi, LaterGenerateEndsAnEarlierStream) {
  Model model = Model::Load(kDirectory, {.threads = 1});
  Session session = model.NewSession();
  TokenStream early = session.Generate("Once", Greedy(4));
  EXPECT_TRUE(early.Next().has_value());
  TokenStream late = session.Generate(" upon", Greedy(2));
  EXPECT_FALSE(early.Next().has_value());
  EXPECT_TRUE(late.Next().has_value());
}

TEST_F(PublicApi, SessionKeepsItsModelAlive) {
  std::optional<Session> session;
  {
    Model model = Model::Load(kDirectory, {.threads = 1});
    session = model.NewSession();
  }
  EXPECT_EQ(Ids(session->Generate("Once", Greedy(3))).size(), 3u);
}

TEST_F(PublicApi, Errors) {
  EXPECT_THROW(Model::Load("/nowhere/at/all"), std::runtime_error);
  Model model = Model::Load(kDirectory, {.threads = 1});
  Session session = model.NewSession();
  EXPECT_THROW(session.Generate(std::vector<int32_t>{-1}), std::runtime_error);
  EXPECT_THROW(session.Generate(std::vector<int32_t>{}), std::runtime_error);
  GenerateOptions options;
  options.temperature = -1.0f;
  EXPECT_THROW(session.Generate("x", options), std::runtime_error);
  EXPECT_TRUE(session.tokens().empty());
}

}  // namespace
}  // namespace adder
