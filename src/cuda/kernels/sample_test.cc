// The sampling kernel against a plain reference. Runs where there is a CUDA device.
#include "cuda/kernels/sample.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cuda/kernels/device_data_for_test.h"

namespace adder::cuda {
namespace {

// Not a multiple of four, of a block's slice or of a warp.
constexpr int kVocab = 100003;
constexpr int kStride = 100004;

struct Row {
  std::vector<float> logits;
  SamplingRow sampling{};
  std::vector<int> history;  // the last tokens, the newest last
};

class SampleKernelTest : public testing::Test {
 protected:
  void SetUp() override {
    if (DeviceCount() == 0) GTEST_SKIP() << "there is no CUDA device";
  }

  static Row MakeRow(unsigned seed) {
    Row row;
    row.logits = RandomFloats(seed, kVocab, -8, 8);
    row.sampling.top_p = 1;
    row.sampling.repeat_penalty = 1;
    row.sampling.active = 1;
    row.sampling.seed = seed;
    row.sampling.history_count = 5000 + seed;
    return row;
  }

  // What the kernel chooses, and checks of the progress that it notes.
  static std::vector<int> Choose(const std::vector<Row>& rows) {
    std::vector<float> logits(rows.size() * kStride,
                              std::numeric_limits<float>::infinity());  // the padding's are ignored
    std::vector<SamplingRow> sampling;
    std::vector<int> history(rows.size() * kHistoryTokens, kVocab - 1);
    std::vector<SequenceRun> runs(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      std::copy(row.logits.begin(), row.logits.end(),
                logits.begin() + static_cast<std::ptrdiff_t>(i * kStride));
      sampling.push_back(row.sampling);
      for (size_t h = 0; h < row.history.size(); ++h) {
        const size_t at = row.sampling.history_count - row.history.size() + h;
        history[i * kHistoryTokens + at % kHistoryTokens] = row.history[h];
      }
      runs[i].position = 100 + static_cast<int>(i);
    }
    const DeviceArray<float> device_logits(logits);
    const DeviceArray<SamplingRow> device_sampling(sampling);
    const DeviceArray<int> device_history(history);
    const DeviceArray<SequenceRun> device_runs(runs);
    const DeviceArray<int> tokens(rows.size());
    const DeviceArray<int> output(kOutputSteps * rows.size());
    const Stream stream;
    SampleParams p;
    p.logits = device_logits.data();
    p.stride = kStride;
    p.vocab = kVocab;
    p.rows = static_cast<int>(rows.size());
    p.sampling = device_sampling.data();
    p.history = device_history.data();
    p.runs = device_runs.data();
    p.tokens = tokens.data();
    p.output = output.data();
    p.output_stride = static_cast<int>(rows.size());
    LaunchSample(p, stream.get());
    stream.Synchronize();
    std::vector<int> chosen;
    for (size_t i = 0; i < rows.size(); ++i) {
      const SamplingRow& before = rows[i].sampling;
      const SamplingRow after = device_sampling.Download()[i];
      chosen.push_back(output.Download()[before.steps % kOutputSteps * rows.size() + i]);
      const unsigned moved = before.active != 0 ? 1 : 0;
      EXPECT_EQ(after.steps, before.steps + moved);
      EXPECT_EQ(after.history_count, before.history_count + moved);
      EXPECT_EQ(after.draws, before.draws + (moved != 0 && before.temperature > 0 ? 1u : 0u));
      EXPECT_EQ(device_runs.Download()[i].position, 100 + static_cast<int>(i + moved));
      if (before.active == 0) continue;
      const int next = std::max(chosen.back(), 0);
      EXPECT_EQ(tokens.Download()[i], next);
      EXPECT_EQ(
          device_history.Download()[i * kHistoryTokens + before.history_count % kHistoryTokens],
          next);
    }
    return chosen;
  }

  static std::vector<float> Penalised(const Row& row) {
    std::vector<float> logits = row.logits;
    const auto window =
        std::min(row.history.size(), static_cast<size_t>(row.sampling.repeat_window));
    for (size_t h = row.history.size() - window; h < row.history.size(); ++h) {
      const auto token = static_cast<size_t>(row.history[h]);
      const float logit = row.logits[token];
      logits[token] =
          logit > 0 ? logit / row.sampling.repeat_penalty : logit * row.sampling.repeat_penalty;
    }
    return logits;
  }
  // The most likely first, of equals the lowest id.
  static std::vector<int> Ranked(const std::vector<float>& logits) {
    std::vector<int> ids(logits.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::stable_sort(ids.begin(), ids.end(), [&](int a, int b) {
      return logits[static_cast<size_t>(a)] > logits[static_cast<size_t>(b)];
    });
    return ids;
  }
};

TEST_F(SampleKernelTest, GreedyChoosesTheLowestOfTheLargest) {
  std::vector<Row> rows;
  // The first and the last logits, of blocks and warps as well, and ties.
  const std::vector<std::vector<int>> winners = {{0},
                                                 {kVocab - 1},
                                                 {kVocab - 1, kVocab - 2},
                                                 {50001, 70000, 99999},
                                                 {12503, 12504},
                                                 {12500, 12499},
                                                 {3, 2, 1},
                                                 {31, 32, 2047, 2048}};
  for (const std::vector<int>& of_row : winners) {
    rows.push_back(MakeRow(static_cast<unsigned>(rows.size())));
    for (int id : of_row) rows.back().logits[static_cast<size_t>(id)] = 9.5f;
  }
  rows.push_back(MakeRow(100));  // all below zero
  for (float& logit : rows.back().logits) logit -= 20;
  const std::vector<int> chosen = Choose(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(chosen[i], Ranked(rows[i].logits).front()) << "row " << i;
  }
}

TEST_F(SampleKernelTest, PenaltyCountsEachTokenOnceAndOnlyInTheWindow) {
  std::vector<Row> rows;
  for (unsigned i = 0; i < 6; ++i) {
    Row row = MakeRow(i);
    row.sampling.repeat_penalty = i % 2 == 0 ? 1.4f : 0.8f;
    row.sampling.repeat_window = i < 4 ? 8 : 3;
    if (i >= 4) {
      for (float& logit : row.logits) logit -= 20;
    }
    const std::vector<int> ranked = Ranked(row.logits);
    // The best five, some twice; the best one only outside of a window of three.
    row.history = {ranked[0], ranked[0], ranked[3], ranked[4], ranked[1], ranked[2], ranked[1]};
    rows.push_back(row);
  }
  const std::vector<int> chosen = Choose(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(chosen[i], Ranked(Penalised(rows[i])).front()) << "row " << i;
  }
}

TEST_F(SampleKernelTest, ReportsLogitsThatAreNotFinite) {
  std::vector<Row> rows;
  for (unsigned i = 0; i < 5; ++i) rows.push_back(MakeRow(i));
  rows[0].logits[kVocab - 1] = std::numeric_limits<float>::quiet_NaN();
  rows[1].logits[40000] = -std::numeric_limits<float>::quiet_NaN();
  rows[1].sampling.temperature = 1;
  rows[2].logits[7] = std::numeric_limits<float>::infinity();
  rows[3].logits[8] = -std::numeric_limits<float>::infinity();  // never chosen, no error
  std::fill(rows[4].logits.begin(), rows[4].logits.end(), -std::numeric_limits<float>::infinity());
  const std::vector<int> chosen = Choose(rows);
  EXPECT_EQ(chosen[0], -1);
  EXPECT_EQ(chosen[1], -1);
  EXPECT_EQ(chosen[2], -1);
  EXPECT_EQ(chosen[3], Ranked(rows[3].logits).front());
  EXPECT_EQ(chosen[4], -1);
}

TEST_F(SampleKernelTest, RowsThatAreNotActiveStayAsTheyAre) {
  std::vector<Row> rows = {MakeRow(1), MakeRow(2), MakeRow(3)};
  rows[1].sampling.active = 0;
  const std::vector<int> chosen = Choose(rows);
  EXPECT_EQ(chosen[0], Ranked(rows[0].logits).front());
  EXPECT_EQ(chosen[2], Ranked(rows[2].logits).front());
}

TEST_F(SampleKernelTest, TopKDrawsInOrderOfRank) {
  std::vector<Row> rows;
  for (unsigned i = 0; i < 12; ++i) {
    Row row = MakeRow(i);
    row.sampling.temperature = 0.5f + 0.3f * static_cast<float>(i);
    row.sampling.top_k = i % 3 == 0 ? 1 : i % 3 == 1 ? 40 : 1000;
    row.sampling.top_p = i % 2 == 0 ? 1 : 0.7f;
    row.sampling.min_p = i % 4 == 3 ? 0.9f : 0;
    row.sampling.draws = 11 * i;
    row.sampling.steps = i;
    row.sampling.repeat_penalty = i % 4 == 1 ? 1.2f : 1.0f;
    row.sampling.repeat_window = 4;
    const std::vector<int> ranked = Ranked(row.logits);
    row.history = {ranked[5], ranked[0], ranked[2], ranked[9]};
    // Equal ones around the last that is kept.
    for (size_t r = 38; r < 44; ++r) {
      row.logits[static_cast<size_t>(ranked[r])] = row.logits[static_cast<size_t>(ranked[38])];
    }
    rows.push_back(row);
  }
  const std::vector<int> chosen = Choose(rows);
  for (size_t i = 0; i < rows.size(); ++i) {
    const SamplingRow& s = rows[i].sampling;
    const std::vector<float> logits = Penalised(rows[i]);
    std::vector<int> ids = Ranked(logits);
    ids.resize(static_cast<size_t>(s.top_k));
    const auto weight = [&](int id) {
      return std::exp((static_cast<double>(logits[static_cast<size_t>(id)]) -
                       logits[static_cast<size_t>(ids[0])]) /
                      s.temperature);
    };
    double all = 0;
    for (int id : ids) all += weight(id);
    double kept = 0;
    size_t count = 0;
    while (count < ids.size() && (s.top_p == 1 || kept < s.top_p * all) &&
           weight(ids[count]) >= s.min_p) {
      kept += weight(ids[count++]);
    }
    uint64_t z = s.seed + (s.draws + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    z ^= z >> 31;
    double left = static_cast<double>(z >> 11) * 0x1p-53 * kept;
    size_t rank = 0;
    while (rank + 1 < count && left >= weight(ids[rank])) left -= weight(ids[rank++]);
    EXPECT_EQ(chosen[i], ids[rank]) << "row " << i;
  }
}

// Three likely tokens among many hopeless ones, drawn by many seeds.
TEST_F(SampleKernelTest, DrawsAsOftenAsProbabilitiesSay) {
  constexpr int kRows = 200;
  const auto shares = [](float top_p, float min_p) {
    std::vector<Row> rows;
    for (unsigned i = 0; i < kRows; ++i) {
      Row row = MakeRow(1);
      for (float& logit : row.logits) logit -= 40;
      row.logits[70000] = std::log(0.5f);
      row.logits[12] = std::log(0.3f);
      row.logits[kVocab - 1] = std::log(0.2f);
      row.sampling.temperature = 1;
      row.sampling.top_p = top_p;
      row.sampling.min_p = min_p;
      row.sampling.seed = i;
      rows.push_back(row);
    }
    const std::vector<int> chosen = Choose(rows);
    std::vector<double> found;
    for (int id : {70000, 12, kVocab - 1}) {
      found.push_back(static_cast<double>(std::count(chosen.begin(), chosen.end(), id)) / kRows);
    }
    return found;
  };
  constexpr double kNear = 0.11;  // three standard deviations
  const std::vector<double> all = shares(1, 0);
  EXPECT_NEAR(all[0], 0.5, kNear);
  EXPECT_NEAR(all[1], 0.3, kNear);
  EXPECT_NEAR(all[2], 0.2, kNear);
  for (const std::vector<double>& two : {shares(0.7f, 0), shares(1, 0.5f)}) {
    EXPECT_NEAR(two[0], 0.625, kNear);
    EXPECT_NEAR(two[1], 0.375, kNear);
    EXPECT_EQ(two[2], 0);
  }
}

}  // namespace
}  // namespace adder::cuda
