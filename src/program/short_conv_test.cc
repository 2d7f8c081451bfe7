// ShortConv, Mamba-2 with a selection and norms after mixers: lowered, verified, costed, and run by
// the interpreter. Expectations of values are computed here from the formulas over the whole
// sequence.
#include <gtest/gtest.h>

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

// channels 5, d_conv 3.
ShortConv TestShortConv(PlanBuilder& builder, int64_t hidden, bool conv_bias) {
  ShortConv conv;
  conv.channels = 5;
  conv.d_conv = 3;
  conv.in_proj = builder.Linear("c.in_proj", 15, hidden, true);
  conv.conv_weight = builder.Vector("c.conv", NamedRandom("c.conv").Values(15, 0.6f));
  if (conv_bias) {
    conv.conv_bias = builder.Vector("c.conv_bias", NamedRandom("c.conv_bias").Values(5, 0.3f));
  }
  conv.out_proj = builder.Linear("c.out_proj", hidden, 5);
  return conv;
}

// heads 4 in 2 groups, head_dim 3, d_state 5, d_conv 4, dt_rank 6.
Mamba2 TestSelected(PlanBuilder& builder, int64_t hidden) {
  Mamba2 m;
  m.heads = 4;
  m.head_dim = 3;
  m.d_state = 5;
  m.groups = 2;
  m.d_conv = 4;
  m.selection.emplace();
  m.selection->dt_rank = 6;
  m.in_proj = builder.Linear("s.in_proj", 24, hidden);
  m.conv_weight = builder.Vector("s.conv", NamedRandom("s.conv").Values(48, 0.6f));
  m.selection->proj = builder.Linear("s.bcdt", 26, 12);
  m.selection->b_norm = builder.Norm("s.b_norm", 10, 2);
  m.selection->c_norm = builder.Norm("s.c_norm", 10);
  m.selection->dt_norm = builder.Norm("s.dt_norm", 6);
  m.selection->dt_proj = builder.Linear("s.dt_proj", 4, 6, true);
  m.dt_bias = builder.Vector("s.dt_bias", {-1.0f, 0.1f, 0.7f, -0.3f});
  m.a = builder.Vector("s.a", {-0.2f, -0.5f, -1.1f, -0.05f});
  m.d = builder.Vector("s.d", {0.3f, -0.4f, 0.9f, 1.2f});
  m.out_proj = builder.Linear("s.out_proj", hidden, 12);
  return m;
}

// Layer 0: ShortConv, then an MLP with a post_norm. Layer 1: Mamba-2 with selection and post_norm.
PlanBuilder TwoLayers(bool conv_bias = true) {
  PlanBuilder builder = test::StartPlan(13, 7);
  test::AddBlock(builder, 0, {TestShortConv(builder, 7, conv_bias)});
  test::AddBlock(builder, 0, {test::TestMlp(builder, "p", 7)});
  builder.plan.blocks[1].post_norm = builder.Norm("p.post_norm", 7);
  test::AddBlock(builder, 1, {TestSelected(builder, 7)});
  builder.plan.blocks[2].post_norm = builder.Norm("s.post_norm", 7);
  return builder;
}

const std::vector<int32_t> kTokens{3, 11, 0, 7, 7, 12, 5};

struct Runner {
  explicit Runner(const PlanBuilder& builder)
      : plan(builder.plan), weights(builder.Bind()), executor(MakeInterpreter(builder.Lower())) {}

  Rows Until(const std::string& op) {
    const SequenceId id = executor->CreateSequence();
    const Rows rows = Until(op, id, kTokens);
    executor->FreeSequence(id);
    return rows;
  }
  Rows Until(const std::string& op, SequenceId id, const std::vector<int32_t>& tokens) {
    return test::RowsUntil(*executor, op, id, tokens);
  }
  const std::vector<float>& V(VectorId id) const {
    return weights->vectors[static_cast<size_t>(id)];
  }
  double W(MatrixId id, size_t row, size_t col) const {
    return test::WeightAt(*weights, id, row, col);
  }
  // The norm of row[begin, begin + size).
  std::vector<double> Norm(const RmsNorm& norm, const std::vector<double>& row, size_t begin,
                           size_t size) const {
    const size_t part = size / static_cast<size_t>(norm.groups);
    std::vector<double> out;
    for (size_t i = 0; i < size; ++i) {
      double mean = 0;
      for (size_t k = i / part * part; k < (i / part + 1) * part; ++k) {
        mean += row[begin + k] * row[begin + k] / static_cast<double>(part);
      }
      out.push_back(row[begin + i] / std::sqrt(mean + norm.eps) * V(norm.weight)[i]);
    }
    return out;
  }

  Plan plan;
  std::shared_ptr<const BoundWeights> weights;
  std::unique_ptr<Executor> executor;
};

TEST(ShortConvProgram, GoldenOpList) {
  const Program program = TwoLayers().Lower();
  EXPECT_EQ(test::OpList(program),
            "embed -> residual\n"
            "layers.0.short_conv.in_proj -> short_conv.in_proj\n"
            "layers.0.short_conv.conv -> short_conv.conv\n"
            "layers.0.short_conv.out_proj -> residual\n"
            "layers.0.mlp.gate_up -> mlp.gate_up\n"
            "layers.0.mlp.down -> post_norm\n"
            "layers.0.mlp.post_norm -> residual\n"
            "layers.1.mamba2.in_proj -> mamba2.in_proj\n"
            "layers.1.mamba2.conv -> mamba2.conv\n"
            "layers.1.mamba2.selection -> mamba2.selection\n"
            "layers.1.mamba2.scan -> mamba2.scan\n"
            "layers.1.mamba2.out_proj -> post_norm\n"
            "layers.1.mamba2.post_norm -> residual\n"
            "head -> logits\n");
  const std::string text = ProgramString(program);
  EXPECT_NE(text.find("causal conv, channels 5, d_conv 3, gate before, gate after"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("norm, add, scale 0.6 -> residual"), std::string::npos) << text;
}

TEST(ShortConvProgram, ConvMatchesTheFormula) {
  for (const bool bias : {true, false}) {
    Runner runner(TwoLayers(bias));
    const auto& conv = std::get<ShortConv>(runner.plan.blocks[0].mixers[0]);
    const Rows rows = runner.Until("layers.0.short_conv.in_proj");
    Rows expected(rows.size(), std::vector<double>(5));
    for (size_t t = 0; t < rows.size(); ++t) {
      for (size_t c = 0; c < 5; ++c) {
        double sum = bias ? runner.V(conv.conv_bias)[c] : 0.0;
        for (size_t lag = 0; lag < 3 && lag <= t; ++lag) {
          // The last tap meets the newest product of B and x.
          sum += runner.V(conv.conv_weight)[(2 - lag) * 5 + c] * rows[t - lag][c] *
                 rows[t - lag][10 + c];
        }
        expected[t][c] = rows[t][5 + c] * sum;
      }
    }
    ExpectNear(runner.Until("layers.0.short_conv.conv"), expected);
  }
}

TEST(ShortConvProgram, NormsAfterMixersScaleWhatIsAdded) {
  Runner runner(TwoLayers());
  Rows expected = runner.Until("layers.0.short_conv.out_proj");
  const Rows down = runner.Until("layers.0.mlp.down");
  for (size_t t = 0; t < down.size(); ++t) {
    const auto y = runner.Norm(*runner.plan.blocks[1].post_norm, down[t], 0, 7);
    for (size_t i = 0; i < 7; ++i) expected[t][i] += double{0.6f} * y[i];
  }
  ExpectNear(runner.Until("layers.0.mlp.post_norm"), expected);
}

TEST(Mamba2SelectionProgram, ConvRunsOverXAlone) {
  Runner runner(TwoLayers());
  const auto& m = std::get<Mamba2>(runner.plan.blocks[2].mixers[0]);
  const Rows rows = runner.Until("layers.1.mamba2.in_proj");
  Rows expected(rows.size(), std::vector<double>(12));
  for (size_t t = 0; t < rows.size(); ++t) {
    for (size_t c = 0; c < 12; ++c) {
      double sum = 0;
      for (size_t lag = 0; lag < 4 && lag <= t; ++lag) {
        sum += runner.V(m.conv_weight)[(3 - lag) * 12 + c] * rows[t - lag][12 + c];
      }
      expected[t][c] = Silu(sum);
    }
  }
  ExpectNear(runner.Until("layers.1.mamba2.conv"), expected);
}

// y_t = d x_t + sum over s <= t of (C_t . B_s) dt_s exp(a * (dt_{s+1} + ... + dt_t)) x_s.
TEST(Mamba2SelectionProgram, ScanMatchesTheClosedForm) {
  Runner runner(TwoLayers());
  const auto& m = std::get<Mamba2>(runner.plan.blocks[2].mixers[0]);
  const Mamba2Selection& selection = *m.selection;
  const Rows projected = runner.Until("layers.1.mamba2.in_proj");
  const Rows x = runner.Until("layers.1.mamba2.conv");
  const Rows selected = runner.Until("layers.1.mamba2.selection");
  Rows b, c, dt;
  for (const std::vector<double>& row : selected) {
    b.push_back(runner.Norm(*selection.b_norm, row, 0, 10));
    c.push_back(runner.Norm(*selection.c_norm, row, 10, 10));
    const std::vector<double> low = runner.Norm(*selection.dt_norm, row, 20, 6);
    dt.emplace_back();
    for (size_t head = 0; head < 4; ++head) {
      double raw = runner.V(m.dt_bias)[head] + runner.V(selection.dt_proj.bias)[head];
      for (size_t k = 0; k < 6; ++k) raw += runner.W(selection.dt_proj.weight, head, k) * low[k];
      dt.back().push_back(std::log(1 + std::exp(raw)));
    }
  }
  Rows expected(x.size(), std::vector<double>(12));
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t channel = 0; channel < 12; ++channel) {
      const size_t head = channel / 3;
      double y = runner.V(m.d)[head] * x[t][channel];
      double passed = 0;
      for (size_t s = t + 1; s-- > 0;) {
        double dot = 0;
        for (size_t n = 0; n < 5; ++n) dot += c[t][head / 2 * 5 + n] * b[s][head / 2 * 5 + n];
        y += dot * dt[s][head] * std::exp(runner.V(m.a)[head] * passed) * x[s][channel];
        passed += dt[s][head];
      }
      expected[t][channel] = y * Silu(projected[t][channel]);
    }
  }
  ExpectNear(runner.Until("layers.1.mamba2.scan"), expected);
}

TEST(ShortConvProgram, ContinuesFromItsStates) {
  Runner runner(TwoLayers());
  const Rows whole = runner.Until("layers.1.mamba2.post_norm");
  for (const size_t first : {size_t{1}, size_t{2}, size_t{5}}) {
    const SequenceId id = runner.executor->CreateSequence();
    const auto split = kTokens.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<int32_t> head(kTokens.begin(), split);
    runner.executor->Forward({{id, head, LogitsRows::kNone}});
    const Rows rest = runner.Until("layers.1.mamba2.post_norm", id, {split, kTokens.end()});
    EXPECT_EQ(rest, Rows(whole.begin() + static_cast<std::ptrdiff_t>(first), whole.end()));
  }
}

TEST(ShortConvProgram, CostIsHandComputed) {
  const Program program = TwoLayers().Lower();
  const auto cost = [&](const char* name) {
    return CostOf(program, program.FindOp(name), 6, 2, 100);
  };
  // conv [3, 5] + bias 5; window [2, 5], read and written by two sequences.
  const OpCost conv = cost("layers.0.short_conv.conv");
  EXPECT_EQ(conv.weight_bytes, (15 + 5) * 4);
  EXPECT_EQ(conv.state_bytes, 2 * 2 * 10 * 4);
  EXPECT_EQ(conv.flops, 6 * (2 * 3 + 2) * 5);
  // dt_proj [4, 6] + bias 4, norms 10 + 10 + 6, dt_bias, a, d of 4; state [4, 5, 3].
  const OpCost scan = cost("layers.1.mamba2.scan");
  EXPECT_EQ(scan.weight_bytes, (24 + 4 + 26 + 12) * 4);
  EXPECT_EQ(scan.state_bytes, 2 * 2 * 60 * 4);
  EXPECT_EQ(scan.flops, 6 * (5 * 60 + 3 * 12 + 2 * 4 * 6));
  EXPECT_EQ(cost("layers.1.mamba2.conv").state_bytes, 2 * 2 * 36 * 4);
  EXPECT_EQ(cost("layers.1.mamba2.post_norm").weight_bytes, 7 * 4);
}

void ExpectInvalid(const std::function<void(Program&)>& change, const std::string& message) {
  Program program = TwoLayers().Lower();
  change(program);
  try {
    VerifyProgram(program);
    ADD_FAILURE() << "accepted; expected " << message;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(ShortConvProgram, VerifierFindsFaults) {
  const auto conv = [](Program& p) -> CausalConvOp& {
    return std::get<CausalConvOp>(p.ops[2].body);
  };
  ExpectInvalid([&](Program& p) { conv(p).x = 11; }, "it reads columns outside its input");
  ExpectInvalid([&](Program& p) { conv(p).gate_after = -2; }, "it reads columns outside its input");
  ExpectInvalid([&](Program& p) { conv(p).x = -1; }, "it has nothing to convolve");
  ExpectInvalid([&](Program& p) { conv(p).d_conv = 0; }, "no channels or no taps");
  ExpectInvalid([&](Program& p) { conv(p).conv_state = -1; }, "it has no conv state");
  ExpectInvalid([&](Program& p) { conv(p).conv_state = 1; }, "its conv state is 'conv'");
  ExpectInvalid([&](Program& p) { conv(p).bias = conv(p).weight; },
                "its conv bias has 15 elements");
  const auto scan = [](Program& p) -> Mamba2SelectedOp& {
    return std::get<Mamba2SelectedOp>(p.ops[10].body);
  };
  ExpectInvalid([&](Program& p) { scan(p).ssm_state = -1; }, "it has no ssm state");
  ExpectInvalid([&](Program& p) { scan(p).mixer.selection.reset(); }, "has no selection");
  ExpectInvalid([&](Program& p) { scan(p).selected = scan(p).convolved; }, "26 wide rows");
  ExpectInvalid([&](Program& p) { scan(p).mixer.selection->dt_proj.weight = 0; }, "its dt_proj is");
  ExpectInvalid([](Program& p) { std::get<NormAddOp>(p.ops[6].body).input = p.residual; },
                "it adds to the buffer it reads");
}

}  // namespace
}  // namespace adder
