// The gated delta rule as a program: its ops, their checks and costs, and the interpreter against
// the recurrence written as matrices.
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
constexpr size_t kKeyHeads = 2;
constexpr size_t kHeads = 4;
constexpr size_t kKeyDim = 3;
constexpr size_t kValueDim = 5;
constexpr size_t kTaps = 4;
constexpr size_t kChannels = 2 * kKeyHeads * kKeyDim + kHeads * kValueDim;
const std::vector<int32_t> kTokens{3, 11, 0, 7, 7, 12, 5};

// A decay per head, negative eigenvalues and a SiLU gate; or a decay per channel and a sigmoid
// gate, both from low ranks.
PlanBuilder DeltaPlan(bool low_rank) {
  PlanBuilder builder = test::StartPlan(13, kHidden);
  GatedDelta m;
  m.key_heads = kKeyHeads;
  m.value_heads = kHeads;
  m.key_dim = kKeyDim;
  m.value_dim = kValueDim;
  m.d_conv = kTaps;
  m.qk_eps = 0.01f;
  m.query_scale = 0.6f;
  m.beta_scale = low_rank ? 1 : 2;
  m.decay_per_channel = low_rank;
  m.gate_activation = low_rank ? Activation::kSigmoid : Activation::kSilu;
  if (low_rank) {
    m.decay_proj =
        LowRank{builder.Linear("f_a", 2, kHidden), builder.Linear("f_b", kHeads * kKeyDim, 2)};
    m.gate_proj = LowRank{builder.Linear("g_a", 3, kHidden),
                          builder.Linear("g_b", kHeads * kValueDim, 3, true)};
  }
  m.in_proj = builder.Linear("in_proj", m.in_proj_rows(), kHidden);
  m.conv_weight = builder.Vector("conv", NamedRandom("conv").Values(kTaps * kChannels, 0.6f));
  m.dt_bias = builder.Vector("dt_bias", NamedRandom("dt_bias").Values(m.decay_rows(), 0.8f));
  m.a = builder.Vector("a", {-0.2f, -0.5f, -1.1f, -0.05f});
  m.norm = builder.Norm("norm", kValueDim);
  m.out_proj = builder.Linear("out_proj", kHidden, kHeads * kValueDim);
  test::AddBlock(builder, 0, {m});
  return builder;
}

struct Runner {
  explicit Runner(const PlanBuilder& builder)
      : weights(builder.Bind()),
        executor(MakeInterpreter(builder.Lower())),
        mixer(std::get<GatedDelta>(builder.plan.blocks[0].mixers[0])) {}

  Rows Until(const std::string& op) const {
    const SequenceId id = executor->CreateSequence();
    Rows rows = test::RowsUntil(*executor, "layers.0.gated_delta." + op, id, kTokens);
    executor->FreeSequence(id);
    return rows;
  }
  double V(VectorId id, size_t i) const { return weights->vectors[static_cast<size_t>(id)][i]; }

  std::shared_ptr<const BoundWeights> weights;
  std::unique_ptr<Executor> executor;
  GatedDelta mixer;
};

std::string OpList(const Program& program) {
  std::string found;
  for (const Op& op : program.ops) {
    found += op.name + " -> " + program.buffers[static_cast<size_t>(OutputOf(op))].name + "\n";
  }
  return found;
}

TEST(GatedDeltaProgram, GoldenOpLists) {
  const Program program = DeltaPlan(false).Lower();
  EXPECT_EQ(OpList(program),
            "embed -> residual\n"
            "layers.0.gated_delta.in_proj -> gated_delta.in_proj\n"
            "layers.0.gated_delta.conv -> gated_delta.conv\n"
            "layers.0.gated_delta.scan -> gated_delta.scan\n"
            "layers.0.gated_delta.out_proj -> residual\n"
            "head -> logits\n");
  EXPECT_NE(ProgramString(program).find(
                "gated delta scan, heads 2 / 4, 3 x 5, decay per head, gate silu"),
            std::string::npos);
  EXPECT_EQ(OpList(DeltaPlan(true).Lower()),
            "embed -> residual\n"
            "layers.0.gated_delta.in_proj -> gated_delta.in_proj\n"
            "layers.0.gated_delta.decay_down -> gated_delta.decay_down\n"
            "layers.0.gated_delta.decay_up -> gated_delta.decay_up\n"
            "layers.0.gated_delta.gate_down -> gated_delta.gate_down\n"
            "layers.0.gated_delta.gate_up -> gated_delta.gate_up\n"
            "layers.0.gated_delta.conv -> gated_delta.conv\n"
            "layers.0.gated_delta.scan -> gated_delta.scan\n"
            "layers.0.gated_delta.out_proj -> residual\n"
            "head -> logits\n");
}

// S_t = (I - beta k k^T) diag(decay) S_{t-1} + beta k v^T, y = S^T q.
TEST(GatedDeltaProgram, ScanMatchesTheMatrixForm) {
  for (const bool low_rank : {false, true}) {
    const Runner runner(DeltaPlan(low_rank));
    const GatedDelta& m = runner.mixer;
    const Rows projected = runner.Until("in_proj");
    const Rows convolved = runner.Until("conv");
    Rows decays, gates;
    if (low_rank) {
      decays = runner.Until("decay_up");
      gates = runner.Until("gate_up");
    } else {
      for (const std::vector<double>& row : projected) {
        const auto a = row.begin() + kChannels + kHeads;
        decays.emplace_back(a, a + kHeads);
        gates.emplace_back(a + kHeads, row.end());
      }
    }
    Rows expected(kTokens.size());
    for (size_t head = 0; head < kHeads; ++head) {
      Rows state(kKeyDim, std::vector<double>(kValueDim));
      for (size_t t = 0; t < kTokens.size(); ++t) {
        const auto unit = [&](size_t begin) {
          std::vector<double> x(
              convolved[t].begin() + static_cast<std::ptrdiff_t>(begin),
              convolved[t].begin() + static_cast<std::ptrdiff_t>(begin + kKeyDim));
          double squares = m.qk_eps;
          for (double value : x) squares += value * value;
          for (double& value : x) value /= std::sqrt(squares);
          return x;
        };
        const size_t key_head = head / (kHeads / kKeyHeads);
        const std::vector<double> q = unit(key_head * kKeyDim);
        const std::vector<double> k = unit((kKeyHeads + key_head) * kKeyDim);
        const size_t values = 2 * kKeyHeads * kKeyDim + head * kValueDim;
        const double beta = m.beta_scale / (1 + std::exp(-projected[t][kChannels + head]));
        Rows decayed = state;
        for (size_t n = 0; n < kKeyDim; ++n) {
          const size_t row = low_rank ? head * kKeyDim + n : head;
          const double step = std::log(1 + std::exp(decays[t][row] + runner.V(m.dt_bias, row)));
          for (double& value : decayed[n]) value *= std::exp(runner.V(m.a, head) * step);
        }
        std::vector<double> y(kValueDim);
        double squares = 0;
        for (size_t c = 0; c < kValueDim; ++c) {
          for (size_t n = 0; n < kKeyDim; ++n) {
            double next = decayed[n][c] + beta * k[n] * convolved[t][values + c];
            for (size_t j = 0; j < kKeyDim; ++j) next -= beta * k[n] * k[j] * decayed[j][c];
            state[n][c] = next;
            y[c] += m.query_scale * q[n] * next;
          }
          squares += y[c] * y[c];
        }
        for (size_t c = 0; c < kValueDim; ++c) {
          const double gate = gates[t][head * kValueDim + c];
          const double normed =
              y[c] / std::sqrt(squares / kValueDim + m.norm.eps) * runner.V(m.norm.weight, c);
          expected[t].push_back(normed * (low_rank ? 1 / (1 + std::exp(-gate)) : Silu(gate)));
        }
      }
    }
    ExpectNear(runner.Until("scan"), expected);
  }
}

TEST(GatedDeltaProgram, ChunksChangeNothing) {
  for (const bool low_rank : {false, true}) {
    const Runner runner(DeltaPlan(low_rank));
    test::ExpectChunksChangeNothing(*runner.executor, kTokens);
  }
}

TEST(GatedDeltaProgram, VerifierFindsFaults) {
  const auto expect = [](bool low_rank, const std::function<void(GatedDeltaOp&)>& change,
                         const std::string& words) {
    Program program = DeltaPlan(low_rank).Lower();
    const int scan = program.FindOp("layers.0.gated_delta.scan");
    change(std::get<GatedDeltaOp>(program.ops[static_cast<size_t>(scan)].body));
    try {
      VerifyProgram(program);
      ADD_FAILURE() << "accepted; expected a message with " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  expect(
      false, [](GatedDeltaOp& op) { op.state = 0; }, "its delta state is 'conv'");
  expect(
      false, [](GatedDeltaOp& op) { op.projected = op.convolved; }, "60 wide rows");
  expect(
      false, [](GatedDeltaOp& op) { op.convolved = op.projected; }, "32 wide rows");
  expect(
      false, [](GatedDeltaOp& op) { op.mixer.key_heads = 3; }, "key heads");
  expect(
      false, [](GatedDeltaOp& op) { op.mixer.a = op.mixer.norm.weight; }, "its a has 5 elements");
  expect(
      false, [](GatedDeltaOp& op) { op.mixer.norm.weight = op.mixer.a; }, "norm weight");
  expect(
      true, [](GatedDeltaOp& op) { op.decay = op.gate; }, "12 wide rows");
  expect(
      true, [](GatedDeltaOp& op) { op.gate = kNoId; }, "there is no buffer");
  expect(
      true, [](GatedDeltaOp& op) { op.mixer.dt_bias = op.mixer.a; }, "its dt bias has 4");
}

TEST(GatedDeltaProgram, Cost) {
  const Program program = DeltaPlan(false).Lower();
  const OpCost conv = CostOf(program, program.FindOp("layers.0.gated_delta.conv"), 5, 2, 9);
  EXPECT_EQ(conv.state_bytes, 2 * 2 * 3 * 32 * 4);
  const OpCost scan = CostOf(program, program.FindOp("layers.0.gated_delta.scan"), 5, 2, 9);
  // a, dt_bias and the norm.
  EXPECT_EQ(scan.weight_bytes, (4 + 4 + 5) * 4);
  EXPECT_EQ(scan.state_bytes, 2 * 2 * 4 * 3 * 5 * 4);
  EXPECT_EQ(scan.flops, 5 * 7 * 4 * 3 * 5);
}

}  // namespace
}  // namespace adder
