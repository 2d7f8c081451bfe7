// Decoding in which the device chooses the tokens, against the host's sampler on logits of the same
// backend. Runs where there is a CUDA device.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "engine/sampler.h"
#include "tests/support/numbers.h"
#include "tests/support/parameters.h"

namespace adder::test {
namespace {

// Over a KV page (64 positions) with the prompts below.
constexpr int kSteps = 60;

struct Row {
  std::vector<int32_t> prompt;
  SamplingParameters sampling;
};

class DeviceDecode : public testing::TestWithParam<ModelAndBackend> {
 protected:
  void SetUp() override {
    Program program = LoadProgram(std::get<0>(GetParam()));
    ADDER_SKIP_UNSUPPORTED(std::get<1>(GetParam()), program);
    executor_ = MakeExecutor(std::get<1>(GetParam()), std::move(program));
  }

  // Rows with every kind of sampling whose choices are exact.
  std::vector<Row> ExactRows() const {
    const int64_t vocab = executor_->program().plan->vocab;
    std::vector<Row> rows(5);
    for (size_t i = 0; i < rows.size(); ++i) {
      rows[i].prompt = RandomTokens(100 + i, static_cast<int64_t>(1 + 5 * i), vocab);
      rows[i].sampling.seed = 7 + i;
    }
    rows[1].sampling.temperature = 0.7f;
    rows[1].sampling.top_k = 20;
    rows[2].sampling.temperature = 1.3f;
    rows[2].sampling.top_k = 50;
    rows[2].sampling.top_p = 0.8f;
    rows[2].sampling.min_p = 0.02f;
    rows[3].sampling.repeat_penalty = 1.3f;
    rows[3].sampling.repeat_window = 16;
    rows[4].sampling.temperature = 1;
    rows[4].sampling.top_k = 1000;
    rows[4].sampling.repeat_penalty = 1.1f;
    return rows;
  }

  // Runs the prompt and chooses the first token on the host.
  int32_t Begin(SequenceId id, const Row& row, Sampler& sampler) {
    executor_->Forward({{id, row.prompt, LogitsRows::kLast}});
    return sampler.Sample(executor_->Logits(0), row.prompt);
  }

  std::vector<int32_t> OnHost(const Row& row) {
    const SequenceId id = executor_->CreateSequence();
    Sampler sampler(row.sampling);
    std::vector<int32_t> context = row.prompt;
    context.push_back(Begin(id, row, sampler));
    for (int step = 0; step < kSteps; ++step) {
      executor_->Forward({{id, std::span(context).last(1), LogitsRows::kLast}});
      context.push_back(sampler.Sample(executor_->Logits(0), context));
    }
    executor_->FreeSequence(id);
    return context;
  }

  // All rows together; `ahead` steps are on their way when one is read.
  std::vector<std::vector<int32_t>> OnDevice(const std::vector<Row>& rows, int ahead) {
    std::vector<std::vector<int32_t>> contexts;
    std::vector<SequenceId> ids;
    for (const Row& row : rows) {
      ids.push_back(executor_->CreateSequence());
      Sampler sampler(row.sampling);
      contexts.push_back(row.prompt);
      contexts.back().push_back(Begin(ids.back(), row, sampler));
    }
    std::vector<DecodeRow> decode(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      decode[i].sequence = ids[i];
      decode[i].token = contexts[i].back();
      decode[i].sampling = rows[i].sampling;
      decode[i].context = contexts[i];
      decode[i].draws = rows[i].sampling.temperature > 0 ? 1 : 0;
    }
    {
      const std::unique_ptr<DecodeStream> stream = executor_->StartDecode(decode);
      EXPECT_NE(stream, nullptr);
      if (!stream) return {};
      int enqueued = 0;
      for (int step = 0; step < kSteps; ++step) {
        for (; enqueued < std::min(step + ahead, kSteps); ++enqueued) stream->Enqueue();
        const std::span<const int32_t> tokens = stream->Read();
        EXPECT_EQ(tokens.size(), rows.size());
        for (size_t i = 0; i < rows.size(); ++i) contexts[i].push_back(tokens[i]);
      }
    }
    for (size_t i = 0; i < rows.size(); ++i) {
      EXPECT_EQ(executor_->Position(ids[i]), static_cast<int64_t>(contexts[i].size()) - 1);
      executor_->FreeSequence(ids[i]);
    }
    return contexts;
  }

  std::unique_ptr<Executor> executor_;
};

TEST_P(DeviceDecode, ChoosesAsTheHostDoes) {
  const std::vector<Row> rows = ExactRows();
  const std::vector<std::vector<int32_t>> found = OnDevice(rows, 3);
  ASSERT_EQ(found.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(found[i], OnHost(rows[i])) << "row " << i;
}

TEST_P(DeviceDecode, OneRowAtATimeIsTheSame) {
  const std::vector<Row> rows = ExactRows();
  const std::vector<std::vector<int32_t>> together = OnDevice(rows, 1);
  for (size_t i = 0; i < rows.size(); ++i) {
    const std::vector<std::vector<int32_t>> alone = OnDevice({rows[i]}, 2);
    ASSERT_EQ(alone.size(), 1u);
    EXPECT_EQ(alone.front(), together[i]) << "row " << i;
  }
}

// A stream may leave states behind in memory. Whatever comes after it must not notice: reading them
// on the host, copies, further streams, prompts.
TEST_P(DeviceDecode, StatesAreWholeWhereverAStreamEnds) {
  const int64_t vocab = executor_->program().plan->vocab;
  const auto stream = [&](SequenceId id, std::vector<int32_t>& context, int steps) {
    DecodeRow row;
    row.sequence = id;
    row.token = context.back();
    row.context = context;
    const std::unique_ptr<DecodeStream> decode = executor_->StartDecode(std::span(&row, 1));
    ASSERT_NE(decode, nullptr);
    std::vector<int32_t> chosen;
    for (int i = 0; i < steps; ++i) {
      decode->Enqueue();
      chosen.push_back(decode->Read().front());
    }
    context.insert(context.end(), chosen.begin(), chosen.end());
  };
  const std::vector<int32_t> turn = RandomTokens(301, 5, vocab);
  // Logits behind `context` without its last token, and then `turn`.
  const auto logits_behind = [&](SequenceId id) {
    executor_->Forward({{id, turn, LogitsRows::kLast}});
    return std::vector<float>(executor_->Logits(0).begin(), executor_->Logits(0).end());
  };
  for (int steps = 1; steps <= 6; ++steps) {
    std::vector<int32_t> context = RandomTokens(300, 4 + steps, vocab);
    const SequenceId id = executor_->CreateSequence();
    executor_->Forward({{id, std::span(context).first(context.size() - 1), LogitsRows::kNone}});
    ASSERT_NO_FATAL_FAILURE(stream(id, context, steps));
    const SequenceId copy = executor_->CopySequence(id);
    std::vector<int32_t> longer = context;
    ASSERT_NO_FATAL_FAILURE(stream(copy, longer, 3));
    const SequenceId copy_of_copy = executor_->CopySequence(copy);
    const SequenceId imported = executor_->ImportSequence(executor_->ExportSequence(id));
    for (const auto& [sequence, tokens] :
         {std::pair(id, context), std::pair(imported, context), std::pair(copy, longer),
          std::pair(copy_of_copy, longer)}) {
      const SequenceId plain = executor_->CreateSequence();
      executor_->Forward({{plain, std::span(tokens).first(tokens.size() - 1), LogitsRows::kNone}});
      const std::vector<float> expected = logits_behind(plain);
      const std::vector<float> found = logits_behind(sequence);
      float largest = 0;
      for (float logit : expected) largest = std::max(largest, std::abs(logit));
      for (size_t i = 0; i < expected.size(); ++i) {
        ASSERT_NEAR(found[i], expected[i], 2e-4f * largest)
            << steps << " steps, sequence " << sequence << " of " << id << ", logit " << i;
      }
      executor_->FreeSequence(plain);
      executor_->FreeSequence(sequence);
    }
  }
}

// Without a top-k the device draws in another order: every choice must lie in the set that the
// parameters keep, and not always be the same.
TEST_P(DeviceDecode, TopPAndMinPKeepTheirSets) {
  Row row;
  row.prompt = RandomTokens(200, 9, executor_->program().plan->vocab);
  {
    // Flat enough that greedy choices are no matter of course, whatever the model's logits are.
    const SequenceId id = executor_->CreateSequence();
    executor_->Forward({{id, row.prompt, LogitsRows::kLast}});
    const auto [smallest, largest] =
        std::minmax_element(executor_->Logits(0).begin(), executor_->Logits(0).end());
    row.sampling.temperature = std::max(1.5f, (*largest - *smallest) / 4);
    executor_->FreeSequence(id);
  }
  row.sampling.top_p = 0.6f;
  row.sampling.min_p = 0.05f;
  row.sampling.seed = 3;
  const std::vector<std::vector<int32_t>> found = OnDevice({row}, 2);
  ASSERT_EQ(found.size(), 1u);
  const std::vector<int32_t>& context = found.front();
  const SequenceId id = executor_->CreateSequence();
  executor_->Forward({{id, row.prompt, LogitsRows::kNone}});
  int other_than_greedy = 0;
  for (size_t at = row.prompt.size(); at + 1 < context.size(); ++at) {
    executor_->Forward({{id, std::span(context).subspan(at, 1), LogitsRows::kLast}});
    const std::span<const float> logits = executor_->Logits(0);
    const int32_t chosen = context[at + 1];
    ASSERT_GE(chosen, 0);
    ASSERT_LT(chosen, static_cast<int32_t>(logits.size()));
    const float largest = *std::max_element(logits.begin(), logits.end());
    double above = 0;
    double all = 0;
    const auto weight = [&](float logit) {
      return std::exp((static_cast<double>(logit) - largest) / row.sampling.temperature);
    };
    for (float logit : logits) {
      all += weight(logit);
      if (logit > logits[static_cast<size_t>(chosen)]) above += weight(logit);
    }
    EXPECT_LT(above, row.sampling.top_p * all * (1 + 1e-5));
    EXPECT_GE(weight(logits[static_cast<size_t>(chosen)]), row.sampling.min_p * (1 - 1e-5));
    other_than_greedy += logits[static_cast<size_t>(chosen)] < largest;
  }
  EXPECT_GT(other_than_greedy, 0);
  executor_->FreeSequence(id);
}

std::vector<Backend> DeviceBackends() {
  std::vector<Backend> backends;
  for (Backend backend : AllBackends()) {
    if (backend == Backend::kCudaF32) backends.push_back(backend);
  }
  return backends;
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceDecode);
INSTANTIATE_TEST_SUITE_P(Tiny, DeviceDecode,
                         testing::Combine(testing::ValuesIn(TinyModels()),
                                          testing::ValuesIn(DeviceBackends())),
                         NameOf);

}  // namespace
}  // namespace adder::test
