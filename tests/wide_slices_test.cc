// Long prompts on CUDA in bf16 mode against the CPU's f32 mode: several pieces and slices per
// batch, sequences with and without a history, prompts beside single tokens, then decoding from the
// states that were left.
#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "tests/support/numbers.h"
#include "tests/support/parameters.h"

namespace adder::test {
namespace {

// Of a row of logits, in the Euclidean norm: activations and weights are rounded to bf16 before
// every product. Measured: up to 0.02, and 0.33 in single rows where step sizes of a state are
// products of products; where adapters are (on the CPU, too, errors of f32 grow thirteenfold there)
// 0.83 in a row and 0.1 in the mean. Between experts a near tie can fall the other way, which
// changes a whole row.
constexpr double kTolerance = 0.1;
constexpr double kSelectionTolerance = 0.5;
constexpr double kAmplifiedTolerance = 1.2;
constexpr double kExpertsTolerance = 1.5;
// Mean over rows.
constexpr double kMeanTolerance = 0.02;
constexpr double kSelectionMeanTolerance = 0.03;
constexpr double kAmplifiedMeanTolerance = 0.15;
constexpr double kExpertsMeanTolerance = 0.1;

class WideSlices : public testing::TestWithParam<ModelAndBackend> {
 protected:
  // What is fed to one sequence, step by step.
  using Feeds = std::vector<std::vector<int32_t>>;

  std::vector<int32_t> Tokens(int64_t count) {
    return RandomTokens(seed_++, count, ours_->program().plan->vocab);
  }

  // Runs feeds[sequence][step] for all sequences together, step by step, on both executors.
  void Compare(const std::vector<Feeds>& feeds, LogitsRows rows);

  void SetUp() override {
    const Program program = LoadProgram(std::get<0>(GetParam()));
    ADDER_SKIP_UNSUPPORTED(std::get<1>(GetParam()), program);
    expected_ = MakeExecutor(Backend::kCpuF32, program);
    ours_ = MakeExecutor(std::get<1>(GetParam()), program);
  }

  std::unique_ptr<Executor> expected_;
  std::unique_ptr<Executor> ours_;
  uint64_t seed_ = 100;
};

void WideSlices::Compare(const std::vector<Feeds>& feeds, LogitsRows rows) {
  const bool experts = HasExperts(ours_->program());
  const bool selections = HasSelections(ours_->program());
  const bool amplifies = AmplifiesRounding(ours_->program());
  std::vector<SequenceId> expected_ids;
  std::vector<SequenceId> our_ids;
  for (size_t i = 0; i < feeds.size(); ++i) {
    expected_ids.push_back(expected_->CreateSequence());
    our_ids.push_back(ours_->CreateSequence());
  }
  double worst = 0;
  double sum = 0;
  int64_t count = 0;
  for (size_t step = 0; step < feeds.front().size(); ++step) {
    Batch expected_batch;
    Batch our_batch;
    for (size_t i = 0; i < feeds.size(); ++i) {
      expected_batch.push_back({expected_ids[i], feeds[i][step], rows});
      our_batch.push_back({our_ids[i], feeds[i][step], rows});
    }
    expected_->Forward(expected_batch);
    ours_->Forward(our_batch);
    ASSERT_EQ(ours_->LogitsCount(), expected_->LogitsCount());
    for (int64_t row = 0; row < ours_->LogitsCount(); ++row) {
      const double difference = RelativeDifference(ours_->Logits(row), expected_->Logits(row));
      worst = std::max(worst, difference);
      sum += difference;
      ++count;
    }
  }
  const double mean = sum / static_cast<double>(count);
  EXPECT_LE(worst, experts      ? kExpertsTolerance
                   : selections ? kSelectionTolerance
                   : amplifies  ? kAmplifiedTolerance
                                : kTolerance);
  // Of few rows one that experts changed weighs much.
  EXPECT_LE(mean, experts ? kExpertsMeanTolerance + kExpertsTolerance / static_cast<double>(count)
                  : selections ? kSelectionMeanTolerance
                  : amplifies  ? kAmplifiedMeanTolerance
                               : kMeanTolerance);
  std::cout << std::get<0>(GetParam()).name << ": logits differ by " << mean << ", at most "
            << worst << "\n";
  for (SequenceId id : our_ids) ours_->FreeSequence(id);
}

TEST_P(WideSlices, RaggedBatch) {
  std::vector<Feeds> feeds;
  const std::vector<std::vector<int64_t>> lengths{
      {70, 300, 1, 1}, {1, 1, 129, 1}, {130, 1, 1, 2}, {2, 257, 64, 1}};
  for (const std::vector<int64_t>& of_sequence : lengths) {
    feeds.emplace_back();
    for (int64_t length : of_sequence) feeds.back().push_back(Tokens(length));
  }
  Compare(feeds, LogitsRows::kAll);
}

TEST_P(WideSlices, MoreThanASlice) {
  // By tokens, then by pieces: a slice has at most 1024 and 16 here.
  Compare({{Tokens(50), Tokens(1100), Tokens(1)}, {Tokens(3), Tokens(600), Tokens(1)}},
          LogitsRows::kLast);
  std::vector<Feeds> many;
  for (int64_t i = 0; i < 40; ++i) many.push_back({Tokens(3 + i % 7), Tokens(1)});
  Compare(many, LogitsRows::kLast);
}

std::vector<Backend> WideBackends() {
  std::vector<Backend> backends;
  for (Backend backend : AllBackends()) {
    if (backend == Backend::kCudaWide) backends.push_back(backend);
  }
  return backends;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(WideSlices);
INSTANTIATE_TEST_SUITE_P(Tiny, WideSlices,
                         testing::Combine(testing::ValuesIn(TinyModels()),
                                          testing::ValuesIn(WideBackends())),
                         NameOf);

}  // namespace
}  // namespace adder::test
