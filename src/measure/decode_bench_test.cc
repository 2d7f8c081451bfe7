#include "measure/decode_bench.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "engine/fake_executor_for_test.h"
#include "measure/bandwidth_probe.h"

namespace adder {
namespace {

TEST(Spread, MedianMinMax) {
  EXPECT_EQ(SpreadOf({5, 1, 4}).median, 4);
  const Spread even = SpreadOf({8, 1, 3, 2});
  EXPECT_EQ(even.median, 2.5);
  EXPECT_EQ(even.min, 1);
  EXPECT_EQ(even.max, 8);
  EXPECT_EQ(SpreadOf({7}).median, 7);
  EXPECT_EQ(SpreadOf({}).median, 0);
}

TEST(DecodeBench, RunsPromptAndStepsAsOftenAsAsked) {
  // Continues with the number of tokens so far, so that every step depends on the ones before.
  FakeExecutor executor(50, Always(50, [](const std::vector<int32_t>& tokens) {
                          return static_cast<int32_t>(tokens.size()) % 50;
                        }));
  DecodeBenchOptions options;
  options.prompt_tokens = 6;
  options.max_tokens = 3;
  options.repeat = 2;
  options.warmup = 1;
  std::vector<int> progress;
  options.progress = [&](int done, int all) {
    EXPECT_EQ(all, 3);
    progress.push_back(done);
  };
  const DecodeBenchResult result = RunDecodeBench(executor, options);
  const std::vector<size_t> once = {6, 1, 1, 1};
  std::vector<size_t> expected;
  for (int i = 0; i < 3; ++i) expected.insert(expected.end(), once.begin(), once.end());
  EXPECT_EQ(executor.chunks(), expected);
  EXPECT_EQ(progress, (std::vector<int>{1, 2, 3}));
  EXPECT_GT(result.decode_rate.min, 0);
  EXPECT_LE(result.decode_rate.min, result.decode_rate.median);
  EXPECT_LE(result.decode_rate.median, result.decode_rate.max);
  EXPECT_EQ(executor.sequence_count(), 0u);
}

TEST(DecodeBench, RefusesOptionsOutOfRange) {
  FakeExecutor executor(5, Always(5, [](const std::vector<int32_t>&) { return 1; }));
  for (int field = 0; field < 4; ++field) {
    DecodeBenchOptions options;
    if (field == 0) options.prompt_tokens = 0;
    if (field == 1) options.max_tokens = -1;
    if (field == 2) options.repeat = 0;
    if (field == 3) options.warmup = -1;
    EXPECT_THROW(RunDecodeBench(executor, options), Error) << field;
  }
}

TEST(BandwidthProbe, ReadsWhatItWrote) {
  const BandwidthProbe probe = ProbeReadBandwidth(2);
  EXPECT_GE(probe.buffer_bytes, int64_t{1} << 22);
  EXPECT_GT(probe.bytes_per_second, 0);
  EXPECT_GE(PeakResidentBytes(), probe.buffer_bytes / 2);
}

}  // namespace
}  // namespace adder
