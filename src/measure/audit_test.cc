#include "measure/audit.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "program/launch_bound.h"
#include "program/plan_builder_for_test.h"

namespace adder {
namespace {

TEST(PlainKernelName, WithoutNamespacesArgumentsAndParameters) {
  EXPECT_EQ(PlainKernelName("void adder::cuda::(anonymous namespace)::MatVecKernel<4, (bool)1>("
                            "adder::cuda::LinearParams)"),
            "MatVecKernel");
  EXPECT_EQ(PlainKernelName("Plain(int, float*)"), "Plain");
  EXPECT_EQ(PlainKernelName("_ZN5adder4cuda6KernelILi4EEEvi"), "Kernel");
  EXPECT_EQ(PlainKernelName("plain_c_name"), "plain_c_name");
  EXPECT_EQ(PlainKernelName(""), "");
  EXPECT_EQ(PlainKernelName("((("), "(((");
}

class AuditTest : public testing::Test {
 protected:
  static constexpr int64_t kSteps = 3;

  // Every op one launch of 90 ns, ten of them after the one before has ended.
  AuditTest() : program_(test::TwoLayerPlan().Lower()) {
    input_.steps = kSteps;
    input_.launches.assign(program_.ops.size() + 1, 1);
    int64_t time = 1000;
    for (int64_t step = 0; step < kSteps; ++step) {
      for (size_t op = 0; op <= program_.ops.size(); ++op) {
        input_.trace.kernels.push_back({op % 2 == 0 ? "Even" : "Odd", time, time + 100});
        time += 100;
      }
    }
    input_.trace.event_synchronizations = kSteps;
    input_.trace.calls["cudaGraphLaunch"] = kSteps;
  }

  // The rules that are broken.
  std::vector<std::string> Broken() const {
    std::vector<std::string> names;
    for (const AuditRule& rule : Audit(program_, input_).rules) {
      if (!rule.kept) names.push_back(rule.name);
    }
    return names;
  }

  using Names = std::vector<std::string>;
  Program program_;
  AuditInput input_;
};

TEST_F(AuditTest, AGoodStepPasses) {
  const AuditReport report = Audit(program_, input_);
  EXPECT_TRUE(report.passed());
  EXPECT_EQ(report.layers, 2);
  EXPECT_DOUBLE_EQ(report.launches_per_step, static_cast<double>(program_.ops.size() + 1));
  EXPECT_DOUBLE_EQ(report.busy_share, 1);
  EXPECT_DOUBLE_EQ(report.output_waits_per_step, 1);
  ASSERT_EQ(report.kernels.size(), 2u);
  EXPECT_NEAR(report.kernels[0].share + report.kernels[1].share, 1, 1e-12);
  EXPECT_NE(AuditText(report).find("kept    no host synchronisation"), std::string::npos);
  EXPECT_EQ(AuditJson(report)["passed"], true);
}

TEST_F(AuditTest, OverlappingKernelsAddUpToTheWall) {
  // The second kernel begins within the first and takes what lies behind its end.
  input_.trace.kernels = {{"First", 0, 100}, {"Second", 40, 160}, {"Inside", 50, 60}};
  input_.steps = 1;
  const AuditReport report = Audit(program_, input_);
  ASSERT_EQ(report.kernels.size(), 3u);
  EXPECT_NEAR(report.kernels[0].seconds, 100e-9, 1e-15);
  EXPECT_NEAR(report.kernels[1].seconds, 60e-9, 1e-15);
  EXPECT_EQ(report.kernels[2].seconds, 0);
  EXPECT_NEAR(report.traced_step_seconds, 160e-9, 1e-15);
}

TEST_F(AuditTest, FindsLaunchesPerChannel) {
  const std::vector<TracedWork> once = input_.trace.kernels;
  const int64_t most = MostLaunches(program_, 0);  // of a layer with experts, more than layer 1's
  ASSERT_GT(most, kMostInstancesPerLayer);
  for (int64_t i = 0; i < kSteps * 2 * (most + 1); ++i) {
    input_.trace.kernels.push_back(
        {"PerChannel", once.back().end + 10 * i, once.back().end + 10 * i + 10});
  }
  const std::vector<std::string> broken = Broken();
  // It is also more than what was captured.
  EXPECT_EQ(broken, (Names{"no launches per channel", "launches within the declared bound"}));
}

// A layer of many small matrices, as RWKV-7's, is not taken for one with launches per channel.
TEST_F(AuditTest, AllowsWhatTheOpsOfALayerComeTo) {
  program_.ops.push_back({"scan", 1, RgLruOp{}});
  for (int64_t i = 0; i < 2 * kMostInstancesPerLayer; ++i) {
    program_.ops.push_back({"matrix", 1, LinearOp{}});
  }
  input_.launches.assign(program_.ops.size() + 1, 1);
  const int64_t begin = input_.trace.kernels.back().end;
  const auto added = static_cast<int64_t>(program_.ops.size() + 1) -
                     static_cast<int64_t>(input_.trace.kernels.size()) / kSteps;
  ASSERT_GT(added, 2 * kMostInstancesPerLayer);
  for (int64_t i = 0; i < kSteps * added; ++i) {
    input_.trace.kernels.push_back({"Odd", begin + 100 * i, begin + 100 * i + 100});
  }
  EXPECT_EQ(Broken(), Names{});
  // Twice as many are not what the ops come to.
  const int64_t end = input_.trace.kernels.back().end;
  for (int64_t i = 0; i < kSteps * 2 * added; ++i) {
    input_.trace.kernels.push_back({"Odd", end + 100 * i, end + 100 * i + 100});
  }
  EXPECT_EQ(Broken(), (Names{"no launches per channel", "launches within the declared bound"}));
}

TEST_F(AuditTest, FindsWaitsOfEveryKind) {
  input_.trace.stream_synchronizations = 1;
  EXPECT_EQ(Broken(), Names{"no host synchronisation"});
  input_.trace.stream_synchronizations = 0;
  input_.trace.device_synchronizations = 1;
  EXPECT_EQ(Broken(), Names{"no host synchronisation"});
  input_.trace.device_synchronizations = 0;
  input_.trace.calls["cudaMemcpy"] = 1;
  EXPECT_EQ(Broken(), Names{"no host synchronisation"});
}

TEST_F(AuditTest, FindsAllocations) {
  input_.trace.calls["cudaMalloc"] = 1;
  EXPECT_EQ(Broken(), Names{"no allocation"});
}

TEST_F(AuditTest, FindsTooManyLaunchesOfALayer) {
  input_.launches[static_cast<size_t>(program_.FindOp("layers.1.attention.attend"))] = 4;
  EXPECT_EQ(Broken(), Names{"launches within the declared bound"});
  const AuditReport report = Audit(program_, input_);
  const auto rule = std::find_if(report.rules.begin(), report.rules.end(),
                                 [](const AuditRule& r) { return !r.kept; });
  ASSERT_NE(rule, report.rules.end());
  EXPECT_NE(rule->finding.find("layer 1: 8 launches, at most 7"), std::string::npos)
      << rule->finding;
}

TEST_F(AuditTest, ACopyThatTheHostAsksForIsNoLaunchOfTheStep) {
  const int64_t end = input_.trace.kernels.back().end;
  input_.trace.memcpys.push_back({"memcpy", end, end + 5});
  input_.trace.host_copies = 1;
  EXPECT_EQ(Broken(), Names{});
}

TEST_F(AuditTest, FindsAnIdleGpu) {
  const int64_t end = input_.trace.kernels.back().end;
  input_.trace.memsets.push_back({"memset", 2 * end, 2 * end + 1});
  EXPECT_LT(Audit(program_, input_).busy_share, 0.7);
  EXPECT_EQ(Broken(), (Names{"launches within the declared bound", "the GPU is busy"}));
  input_.trace.memsets.clear();
  // 4% and then 6% of the time from the first start to the last end.
  const int64_t busy = end - input_.trace.kernels.front().start;
  input_.trace.kernels.back().start += busy / 24;
  input_.trace.kernels.back().end += busy / 24;
  EXPECT_EQ(Broken(), Names{});
  input_.trace.kernels.back().start += busy / 46;
  input_.trace.kernels.back().end += busy / 46;
  EXPECT_EQ(Broken(), Names{"the GPU is busy"});
}

TEST_F(AuditTest, RefusesATraceOfNothing) {
  input_.trace = {};
  EXPECT_THROW(Audit(program_, input_), Error);
  input_.launches.pop_back();
  EXPECT_THROW(Audit(program_, input_), Error);
}

}  // namespace
}  // namespace adder
