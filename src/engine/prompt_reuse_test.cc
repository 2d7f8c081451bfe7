#include "engine/prompt_reuse.h"

#include <gtest/gtest.h>

#include <numeric>
#include <utility>
#include <vector>

#include "core/error.h"
#include "engine/fake_executor_for_test.h"

namespace adder {
namespace {

using Ids = std::vector<int32_t>;

constexpr int64_t kVocab = 100;

// Writes token 7 always.
FakeExecutor Sevens() {
  return FakeExecutor(kVocab, Always(kVocab, [](const Ids&) { return 7; }));
}

// Tokens run so far.
size_t TokensRun(const FakeExecutor& executor) {
  return std::accumulate(executor.chunks().begin(), executor.chunks().end(), size_t{0});
}

// Loads, and writes two tokens. Returns how many tokens were reused and how many were run.
std::pair<size_t, size_t> Turn(PromptReuse& reuse, const FakeExecutor& executor, const Ids& prompt,
                               size_t stable) {
  const size_t before = TokensRun(executor);
  const PromptReuse::Loaded loaded = reuse.Load(prompt, stable, nullptr);
  GenerationOptions options;
  options.max_tokens = 2;
  GenerationSession& session = reuse.session();
  session.Generate(std::span(prompt).subspan(session.tokens().size()), options, {});
  Ids expected = prompt;
  expected.insert(expected.end(), {7, 7});
  EXPECT_EQ(Ids(session.tokens().begin(), session.tokens().end()), expected);
  return {loaded.reused, TokensRun(executor) - before};
}

using Counts = std::pair<size_t, size_t>;

TEST(PromptReuse, APromptThatExtendsTheAnswerRunsOnlyWhatIsNew) {
  FakeExecutor executor = Sevens();
  PromptReuse reuse(executor, nullptr);
  EXPECT_EQ(Turn(reuse, executor, {1, 2, 3}, 2), Counts(0, 4));
  // 1 2 3 7 7 are there; the last 7 has not been run.
  EXPECT_EQ(Turn(reuse, executor, {1, 2, 3, 7, 7, 4, 5}, 6), Counts(4, 4));
}

TEST(PromptReuse, AnAnswerWrittenDifferentlyCostsOnlyTheAnswer) {
  FakeExecutor executor = Sevens();
  PromptReuse reuse(executor, nullptr);
  Turn(reuse, executor, {1, 2, 3}, 2);
  EXPECT_EQ(Turn(reuse, executor, {1, 2, 9, 4}, 3), Counts(2, 3));
  // The snapshot has moved on to 1 2 9.
  EXPECT_EQ(Turn(reuse, executor, {1, 2, 9, 8, 8}, 4), Counts(3, 3));
  // Another beginning starts from nothing.
  EXPECT_EQ(Turn(reuse, executor, {2, 2, 9, 8, 8}, 4), Counts(0, 6));
}

TEST(PromptReuse, TheSnapshotServesSeveralTimes) {
  FakeExecutor executor = Sevens();
  PromptReuse reuse(executor, nullptr);
  Turn(reuse, executor, {1, 2, 3}, 2);
  EXPECT_EQ(Turn(reuse, executor, {1, 2, 4}, 2), Counts(2, 2));
  EXPECT_EQ(Turn(reuse, executor, {1, 2, 5}, 2), Counts(2, 2));
}

TEST(PromptReuse, TheLastTokenIsAlwaysLeftForTheGeneration) {
  FakeExecutor executor = Sevens();
  PromptReuse reuse(executor, nullptr);
  EXPECT_EQ(Turn(reuse, executor, {1, 2}, 99), Counts(0, 3));
  // A snapshot of one token is there, and one of both would leave nothing to run.
  EXPECT_EQ(Turn(reuse, executor, {1, 2}, 99), Counts(1, 2));
  EXPECT_EQ(Turn(reuse, executor, {1}, 0), Counts(0, 2));
  EXPECT_THROW(reuse.Load({}, 0, nullptr), Error);
}

TEST(PromptReuse, Reset) {
  FakeExecutor executor = Sevens();
  PromptReuse reuse(executor, nullptr);
  Turn(reuse, executor, {1, 2, 3}, 2);
  reuse.Reset();
  EXPECT_EQ(executor.sequence_count(), 1u);
  EXPECT_EQ(Turn(reuse, executor, {1, 2, 3}, 2), Counts(0, 4));
}

TEST(PromptReuse, ACancelledPrefillLeavesNoSnapshot) {
  FakeExecutor executor = Sevens();
  PromptReuse reuse(executor, nullptr);
  const std::atomic<bool> cancel = true;
  EXPECT_TRUE(reuse.Load(Ids{1, 2, 3}, 2, &cancel).cancelled);
  EXPECT_EQ(TokensRun(executor), 0u);
  EXPECT_EQ(executor.sequence_count(), 1u);
  // The tokens that were not run are run then.
  EXPECT_EQ(Turn(reuse, executor, {1, 2, 3}, 2), Counts(0, 4));
}

}  // namespace
}  // namespace adder
