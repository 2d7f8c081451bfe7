#include "engine/generation.h"

#include <gtest/gtest.h>

#include <atomic>

#include "core/error.h"
#include "engine/fake_executor_for_test.h"
#include "text/tokenizer_fixture.h"

namespace adder {
namespace {

constexpr int64_t kVocab = 300;

text::Tokenizer SmallTokenizer() {
  return text::Tokenizer::Parse(text::SmallByteLevelTokenizer().dump(), "tokenizer.json");
}

// Writes `script` byte by byte after a prompt of `prompt_size` tokens, then token 263 (the end).
FakeExecutor Writer(std::string script, size_t prompt_size) {
  return FakeExecutor(kVocab, Always(kVocab, [=](const std::vector<int32_t>& tokens) -> int32_t {
                        const size_t written = tokens.size() - prompt_size;
                        if (written >= script.size()) return 263;
                        return static_cast<unsigned char>(script[written]);
                      }));
}

GenerationOptions Tokens(int64_t max_tokens) {
  GenerationOptions options;
  options.max_tokens = max_tokens;
  options.end_ids = {263};
  return options;
}

TEST(Generation, WritesUntilTheEndOfTheText) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor = Writer("a b\xC3\xB6", 2);
  GenerationSession session(executor, &tokenizer);
  std::string streamed;
  const GenerationResult& result =
      session.Generate(std::vector<int32_t>{104, 105}, Tokens(50),
                       [&](const GeneratedPiece& piece) { streamed += piece.text; });
  EXPECT_EQ(result.text, "a b\xC3\xB6");
  EXPECT_EQ(streamed, result.text);
  EXPECT_EQ(result.finish, FinishReason::kEndOfSequence);
  EXPECT_EQ(result.tokens, (std::vector<int32_t>{'a', ' ', 'b', 0xC3, 0xB6, 263}));
  EXPECT_EQ(result.timings.prompt_tokens, 2);
  EXPECT_EQ(result.timings.decode_steps, 5);
  EXPECT_EQ(session.tokens().size(), 8u);
}

TEST(Generation, KeepsTheTimesOfStepsWhereAskedFor) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor = Writer("abc", 1);
  GenerationSession session(executor, &tokenizer);
  EXPECT_TRUE(session.ProfileStep().empty());
  GenerationOptions options = Tokens(50);
  EXPECT_TRUE(session.Generate(std::vector<int32_t>{104}, options, {}).step_times.empty());
  session.Reset();
  options.keep_times = true;
  const GenerationResult& result = session.Generate(std::vector<int32_t>{104}, options, {});
  EXPECT_EQ(static_cast<int64_t>(result.step_times.size()), result.timings.decode_steps);
  for (const HostTimes& times : result.step_times) EXPECT_GE(times.sample, 0);
  // The host runs the steps: nothing to measure, and no sequence is left behind.
  EXPECT_TRUE(session.ProfileStep().empty());
  EXPECT_EQ(executor.sequence_count(), 1u);
}

TEST(Generation, StopsAtTheNumberOfTokensAndEndsHalfCharacters) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor = Writer("ab\xC3\xB6", 1);
  GenerationSession session(executor, &tokenizer);
  const GenerationResult& result = session.Generate(std::vector<int32_t>{104}, Tokens(3), {});
  EXPECT_EQ(result.finish, FinishReason::kLength);
  EXPECT_EQ(result.text, "ab\xEF\xBF\xBD");
}

TEST(Generation, SpecialTokensAreShownWhereAskedFor) {
  const auto tokenizer = SmallTokenizer();
  ASSERT_TRUE(tokenizer.IsSpecial(263));
  FakeExecutor executor(kVocab, Always(kVocab, [](const std::vector<int32_t>&) { return 263; }));
  GenerationSession session(executor, &tokenizer);
  GenerationOptions options;
  options.max_tokens = 2;
  EXPECT_EQ(session.Generate(std::vector<int32_t>{104}, options, {}).text, "");
  options.shown_special = {263};
  const std::string mark(tokenizer.IdToToken(263));
  EXPECT_EQ(session.Generate(std::vector<int32_t>{104}, options, {}).text, mark + mark);
}

TEST(Generation, StopStringAcrossTokens) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor = Writer("one two. three", 1);
  GenerationSession session(executor, &tokenizer);
  GenerationOptions options = Tokens(50);
  options.stop_strings = {"zzz", "o. t"};
  std::string streamed;
  const GenerationResult& result =
      session.Generate(std::vector<int32_t>{104}, options,
                       [&](const GeneratedPiece& piece) { streamed += piece.text; });
  EXPECT_EQ(result.text, "one tw");
  EXPECT_EQ(streamed, "one tw");
  EXPECT_EQ(result.finish, FinishReason::kStopString);
  EXPECT_EQ(result.stop_string, "o. t");
}

TEST(Generation, HalfAStopStringIsShownAtTheEnd) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor = Writer("one two", 1);
  GenerationSession session(executor, &tokenizer);
  GenerationOptions options = Tokens(50);
  options.stop_strings = {"two three"};
  EXPECT_EQ(session.Generate(std::vector<int32_t>{104}, options, {}).text, "one two");
}

TEST(Generation, WithoutEndIdsItGoesOn) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor = Writer("ab", 1);
  GenerationSession session(executor, &tokenizer);
  GenerationOptions options = Tokens(5);
  options.end_ids.clear();
  const GenerationResult& result = session.Generate(std::vector<int32_t>{104}, options, {});
  EXPECT_EQ(result.finish, FinishReason::kLength);
  EXPECT_EQ(result.tokens, (std::vector<int32_t>{'a', 'b', 263, 263, 263}));
  EXPECT_EQ(result.text, "ab");  // the end token is special and has no text
}

TEST(Generation, ASecondPromptContinuesTheSequence) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor(kVocab, Always(kVocab, [](const std::vector<int32_t>& tokens) {
                          return static_cast<int32_t>('a' + tokens.size() % 20);
                        }));
  GenerationSession session(executor, &tokenizer);
  EXPECT_EQ(session.Generate(std::vector<int32_t>{1, 2, 3}, Tokens(2), {}).text, "de");
  // The last token of before ("e") runs together with the new prompt.
  const GenerationResult& second = session.Generate(std::vector<int32_t>{9}, Tokens(2), {});
  EXPECT_EQ(second.text, "gh");
  EXPECT_EQ(second.timings.prompt_tokens, 2);
  // An empty prompt goes on from what is there.
  EXPECT_EQ(session.Generate({}, Tokens(1), {}).text, "i");
  session.Reset();
  EXPECT_TRUE(session.tokens().empty());
  EXPECT_THROW(session.Begin({}, Tokens(1)), Error);
}

TEST(Generation, ForkGoesItsOwnWay) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor(kVocab, Always(kVocab, [](const std::vector<int32_t>& tokens) {
                          return static_cast<int32_t>('a' + (tokens.front() + tokens.size()) % 20);
                        }));
  GenerationSession session(executor, &tokenizer);
  session.Generate(std::vector<int32_t>{4}, Tokens(2), {});
  const auto fork = session.Fork();
  EXPECT_EQ(executor.sequence_count(), 2u);
  const std::string expected = session.Generate({}, Tokens(3), {}).text;
  EXPECT_EQ(fork->Generate({}, Tokens(3), {}).text, expected);
}

TEST(Generation, LongPromptsRunInChunksAtFixedPlaces) {
  FakeExecutor executor(kVocab, Always(kVocab, [](const std::vector<int32_t>&) { return 65; }));
  GenerationSession session(executor, nullptr);
  session.Generate(std::vector<int32_t>(1100, 7), Tokens(1), {});
  EXPECT_EQ(executor.chunks(), (std::vector<size_t>{512, 512, 76}));
  session.Generate(std::vector<int32_t>(500, 7), Tokens(1), {});
  // From 1100 to the next multiple of 512, 1536, with the token left over from before.
  EXPECT_EQ(executor.chunks(), (std::vector<size_t>{512, 512, 76, 436, 65}));
}

TEST(Generation, CancelStopsAtOnce) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor = Writer("a long text", 1);
  GenerationSession session(executor, &tokenizer);
  std::atomic<bool> cancel{false};
  GenerationOptions options = Tokens(50);
  options.cancel = &cancel;
  options.stop_strings = {"lo!"};
  std::string streamed;
  const GenerationResult& result =
      session.Generate(std::vector<int32_t>{104}, options, [&](const GeneratedPiece& piece) {
        streamed += piece.text;
        if (piece.token == 'o') cancel = true;
      });
  EXPECT_EQ(result.finish, FinishReason::kCancelled);
  EXPECT_EQ(result.text, "a lo");  // what the stop string held back is shown
  EXPECT_EQ(streamed, "a lo");
  // Cancelled before anything: the prompt waits, and the next generation runs it.
  EXPECT_EQ(session.Generate(std::vector<int32_t>{5}, options, {}).tokens.size(), 0u);
  cancel = false;
  EXPECT_EQ(session.Generate({}, options, {}).timings.prompt_tokens, 2);
}

TEST(Generation, SameSeedSameTokens) {
  FakeExecutor executor(kVocab, [](const std::vector<int32_t>& tokens) {
    std::vector<float> logits(kVocab);
    for (size_t i = 0; i < logits.size(); ++i) {
      logits[i] = static_cast<float>((i * 37 + static_cast<size_t>(tokens.back()) * 11) % 101) / 20;
    }
    return logits;
  });
  const auto draw = [&](uint64_t seed) {
    GenerationSession session(executor, nullptr);
    GenerationOptions options = Tokens(30);
    options.sampling.temperature = 0.9f;
    options.sampling.seed = seed;
    return session.Generate(std::vector<int32_t>{1}, options, {}).tokens;
  };
  EXPECT_EQ(draw(3), draw(3));
  EXPECT_NE(draw(3), draw(4));
  EXPECT_EQ(executor.sequence_count(), 0u);
}

TEST(Generation, RejectsBadRequests) {
  const auto tokenizer = SmallTokenizer();
  FakeExecutor executor = Writer("a", 1);
  GenerationSession session(executor, &tokenizer);
  EXPECT_THROW(session.Begin(std::vector<int32_t>{300}, Tokens(1)), Error);
  EXPECT_THROW(session.Begin(std::vector<int32_t>{-1}, Tokens(1)), Error);
  EXPECT_THROW(session.Begin(std::vector<int32_t>{1}, Tokens(0)), Error);
  GenerationOptions options = Tokens(1);
  options.stop_strings = {""};
  EXPECT_THROW(session.Begin(std::vector<int32_t>{1}, options), Error);
  options.stop_strings = {"x"};
  GenerationSession without_tokenizer(executor, nullptr);
  EXPECT_THROW(without_tokenizer.Begin(std::vector<int32_t>{1}, options), Error);
  options = Tokens(1);
  options.sampling.top_p = 2;
  EXPECT_THROW(session.Begin(std::vector<int32_t>{1}, options), Error);
  EXPECT_TRUE(session.tokens().empty());
  EXPECT_FALSE(session.Next().has_value());
}

}  // namespace
}  // namespace adder
