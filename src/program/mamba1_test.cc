// The Mamba-1 mixer as a program: its ops, their checks and costs, and the interpreter against the
// formula in closed form over the whole sequence.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "core/error.h"
#include "program/interpreter.h"
#include "program/plan_builder_for_test.h"
#include "program/rows_for_test.h"

namespace adder {
namespace {

using test::ExpectNear;
using test::NamedRandom;
using test::PlanBuilder;
using test::Rows;
using test::Silu;

constexpr int64_t kHidden = 7;
constexpr size_t kInner = 6;
constexpr size_t kState = 3;
constexpr size_t kRank = 2;
constexpr size_t kTaps = 4;
const std::vector<int32_t> kTokens{3, 11, 0, 7, 7, 12, 5};

// dt with a weighted norm, B with one without, C as it is.
PlanBuilder Mamba1Plan() {
  PlanBuilder builder = test::StartPlan(13, kHidden);
  Mamba1 m;
  m.inner = kInner;
  m.d_state = kState;
  m.d_conv = kTaps;
  m.dt_rank = kRank;
  m.in_proj = builder.Linear("in_proj", 2 * kInner, kHidden, true);
  m.conv_weight = builder.Vector("conv", NamedRandom("conv").Values(kTaps * kInner, 0.6f));
  m.conv_bias = builder.Vector("conv_bias", NamedRandom("conv_bias").Values(kInner, 0.3f));
  m.x_proj = builder.Linear("x_proj", kRank + 2 * kState, kInner);
  m.dt_norm = builder.Norm("dt_norm", kRank);
  m.b_norm = RmsNorm{kNoId, 0.01f, 1};
  m.dt_proj = builder.Linear("dt_proj", kInner, kRank, true);
  m.a = builder.Vector("a", NamedRandom("a").Values(kState * kInner, 0.8f, -1.0f));
  m.d = builder.Vector("d", NamedRandom("d").Values(kInner, 0.5f, 0.7f));
  m.out_proj = builder.Linear("out_proj", kHidden, kInner);
  test::AddBlock(builder, 0, {m});
  return builder;
}

struct Runner {
  explicit Runner(const PlanBuilder& builder)
      : weights(builder.Bind()),
        executor(MakeInterpreter(builder.Lower())),
        mixer(std::get<Mamba1>(builder.plan.blocks[0].mixers[0])) {}

  Rows Until(const std::string& op) const {
    const SequenceId id = executor->CreateSequence();
    Rows rows = test::RowsUntil(*executor, op, id, kTokens);
    executor->FreeSequence(id);
    return rows;
  }
  double V(VectorId id, size_t i) const { return weights->vectors[static_cast<size_t>(id)][i]; }
  double W(MatrixId id, size_t row, size_t col) const {
    return test::WeightAt(*weights, id, row, col);
  }

  std::shared_ptr<const BoundWeights> weights;
  std::unique_ptr<Executor> executor;
  Mamba1 mixer;
};

TEST(Mamba1Program, GoldenOpList) {
  const Program program = Mamba1Plan().Lower();
  EXPECT_EQ(test::OpList(program),
            "embed -> residual\n"
            "layers.0.mamba1.in_proj -> mamba1.in_proj\n"
            "layers.0.mamba1.conv -> mamba1.conv\n"
            "layers.0.mamba1.x_proj -> mamba1.x_proj\n"
            "layers.0.mamba1.scan -> mamba1.scan\n"
            "layers.0.mamba1.out_proj -> residual\n"
            "head -> logits\n");
  EXPECT_NE(ProgramString(program).find("mamba1 scan, inner 6, d_state 3, dt_rank 2, normed"),
            std::string::npos);
}

TEST(Mamba1Program, ConvolutionOfX) {
  const Runner runner(Mamba1Plan());
  const Rows projected = runner.Until("layers.0.mamba1.in_proj");
  Rows expected(kTokens.size(), std::vector<double>(kInner));
  for (size_t t = 0; t < kTokens.size(); ++t) {
    for (size_t c = 0; c < kInner; ++c) {
      double sum = runner.V(runner.mixer.conv_bias, c);
      for (size_t lag = 0; lag < kTaps && lag <= t; ++lag) {
        // The last tap meets the newest input.
        sum += runner.V(runner.mixer.conv_weight, (kTaps - 1 - lag) * kInner + c) *
               projected[t - lag][c];
      }
      expected[t][c] = Silu(sum);
    }
  }
  ExpectNear(runner.Until("layers.0.mamba1.conv"), expected);
}

// y_t = d x_t + sum over s <= t and n of C_t[n] B_s[n] dt_s exp(a[n] (dt_{s+1} + ... + dt_t)) x_s.
TEST(Mamba1Program, ScanMatchesTheClosedForm) {
  const Runner runner(Mamba1Plan());
  const Mamba1& m = runner.mixer;
  const Rows projected = runner.Until("layers.0.mamba1.in_proj");
  const Rows x = runner.Until("layers.0.mamba1.conv");
  const Rows selected = runner.Until("layers.0.mamba1.x_proj");
  const size_t tokens = kTokens.size();
  Rows b(tokens), c(tokens), dt(tokens);
  for (size_t t = 0; t < tokens; ++t) {
    const auto mean_square = [&](size_t begin, size_t count) {
      double sum = 0;
      for (size_t i = begin; i < begin + count; ++i) sum += selected[t][i] * selected[t][i];
      return sum / static_cast<double>(count);
    };
    const double dt_size = std::sqrt(mean_square(0, kRank) + m.dt_norm->eps);
    const double b_size = std::sqrt(mean_square(kRank, kState) + m.b_norm->eps);
    for (size_t n = 0; n < kState; ++n) {
      b[t].push_back(selected[t][kRank + n] / b_size);
      c[t].push_back(selected[t][kRank + kState + n]);
    }
    for (size_t channel = 0; channel < kInner; ++channel) {
      double raw = runner.V(m.dt_proj.bias, channel);
      for (size_t r = 0; r < kRank; ++r) {
        raw += runner.W(m.dt_proj.weight, channel, r) * selected[t][r] / dt_size *
               runner.V(m.dt_norm->weight, r);
      }
      dt[t].push_back(std::log(1 + std::exp(raw)));
    }
  }
  Rows expected(tokens, std::vector<double>(kInner));
  for (size_t channel = 0; channel < kInner; ++channel) {
    for (size_t t = 0; t < tokens; ++t) {
      double y = runner.V(m.d, channel) * x[t][channel];
      double passed = 0;
      for (size_t s = t + 1; s-- > 0;) {
        for (size_t n = 0; n < kState; ++n) {
          y += c[t][n] * b[s][n] * dt[s][channel] *
               std::exp(runner.V(m.a, n * kInner + channel) * passed) * x[s][channel];
        }
        passed += dt[s][channel];
      }
      expected[t][channel] = y * Silu(projected[t][kInner + channel]);
    }
  }
  ExpectNear(runner.Until("layers.0.mamba1.scan"), expected);
}

TEST(Mamba1Program, ChunksChangeNothing) {
  const Runner runner(Mamba1Plan());
  test::ExpectChunksChangeNothing(*runner.executor, kTokens);
}

TEST(Mamba1Program, VerifierFindsFaults) {
  const auto expect = [](const std::function<void(Program&, Mamba1ScanOp&)>& change,
                         const std::string& words) {
    Program program = Mamba1Plan().Lower();
    auto& scan = std::get<Mamba1ScanOp>(program.ops[4].body);
    change(program, scan);
    try {
      VerifyProgram(program);
      ADD_FAILURE() << "accepted; expected a message with " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect([](Program&, Mamba1ScanOp& op) { op.ssm_state = 0; }, "its ssm state is 'conv'");
  expect([](Program&, Mamba1ScanOp& op) { op.selected = op.convolved; }, "8 wide rows");
  expect([](Program&, Mamba1ScanOp& op) { op.projected = op.convolved; }, "12 wide rows");
  expect([](Program&, Mamba1ScanOp& op) { op.mixer.dt_rank = 4; }, "10 wide rows");
  expect([](Program&, Mamba1ScanOp& op) { op.mixer.a = op.mixer.d; }, "its a has 6 elements");
  expect([](Program&, Mamba1ScanOp& op) { op.mixer.dt_norm->weight = op.mixer.d; }, "norm weight");
  expect([](Program&, Mamba1ScanOp& op) { op.mixer.b_norm->groups = 2; }, "norm groups");
  expect([](Program&, Mamba1ScanOp& op) { op.mixer.dt_proj = op.mixer.out_proj; }, "dt_proj");
}

TEST(Mamba1Program, Cost) {
  const Program program = Mamba1Plan().Lower();
  const OpCost conv = CostOf(program, program.FindOp("layers.0.mamba1.conv"), 5, 2, 9);
  EXPECT_EQ(conv.weight_bytes, (4 * 6 + 6) * 4);
  EXPECT_EQ(conv.state_bytes, 2 * 2 * 3 * 6 * 4);
  EXPECT_EQ(conv.flops, 5 * 2 * 4 * 6);
  const OpCost scan = CostOf(program, program.FindOp("layers.0.mamba1.scan"), 5, 2, 9);
  // dt_proj [6, 2] and its bias, a [3, 6], d, the norm of dt.
  EXPECT_EQ(scan.weight_bytes, (12 + 6 + 18 + 6 + 2) * 4);
  EXPECT_EQ(scan.state_bytes, 2 * 2 * 18 * 4);
  EXPECT_EQ(scan.flops, 5 * (6 * 18 + 3 * 6 + 2 * 12));
}

}  // namespace
}  // namespace adder
