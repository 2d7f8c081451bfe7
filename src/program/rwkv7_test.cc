// RWKV-7 and the MLP with token shift as programs: their ops, checks and costs, and the interpreter
// against the formulas over the whole sequence.
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

constexpr int64_t kHidden = 7;
constexpr size_t kHeads = 2;
constexpr size_t kDim = 3;
constexpr size_t kInner = kHeads * kDim;
const std::vector<int32_t> kTokens{3, 11, 0, 7, 7, 12, 5};

RmsNorm Centered(PlanBuilder& builder, const std::string& label, int64_t size, int64_t groups = 1) {
  RmsNorm norm = builder.Norm(label, size, groups);
  norm.centered = true;
  norm.bias = builder.Vector(label + ".bias", NamedRandom(label + ".bias").Values(size, 0.4f));
  return norm;
}

Rwkv7 Mixer7(PlanBuilder& builder, const std::string& label, bool first) {
  Rwkv7 m;
  m.heads = kHeads;
  m.head_dim = kDim;
  const auto vector = [&](const std::string& name, int64_t size, float offset) {
    return builder.Vector(label + name, NamedRandom(label + name).Values(size, 0.6f, offset));
  };
  const auto low_rank = [&](const std::string& name, int64_t rank) {
    return LowRank{builder.Linear(label + name + "_down", rank, kHidden),
                   builder.Linear(label + name + "_up", kInner, rank, true)};
  };
  m.shift_mix = vector(".x", 6 * kHidden, 0.5f);
  m.r = builder.Linear(label + ".r", kInner, kHidden);
  m.k = builder.Linear(label + ".k", kInner, kHidden);
  m.v = builder.Linear(label + ".v", kInner, kHidden);
  m.decay = low_rank(".w", 2);
  m.decay.activation = Activation::kTanh;
  m.rate = low_rank(".a", 4);
  m.gate = low_rank(".g", 5);
  m.gate.activation = Activation::kSigmoid;
  if (!first) m.value_mix = low_rank(".v_mix", 3);
  m.key_scale = vector(".k_k", kInner, 0.8f);
  m.key_rate = vector(".k_a", kInner, 0.9f);
  m.bonus = vector(".r_k", kInner, 0.0f);
  m.norm = Centered(builder, label + ".norm", kInner, kHeads);
  m.output = builder.Linear(label + ".output", kHidden, kInner);
  return m;
}

DenseMlp ShiftedMlp(PlanBuilder& builder, const std::string& label) {
  DenseMlp mlp;
  mlp.intermediate = 9;
  mlp.activation = Activation::kRelu2;
  mlp.gated = false;
  mlp.shift_mix =
      builder.Vector(label + ".x", NamedRandom(label + ".x").Values(kHidden, 0.5f, 0.5f));
  mlp.gate_up = builder.Linear(label + ".key", 9, kHidden);
  mlp.down = builder.Linear(label + ".value", kHidden, 9);
  return mlp;
}

// Two layers, of which the second mixes in the first's values; layer norms throughout.
PlanBuilder Rwkv7Plan() {
  PlanBuilder builder = test::StartPlan(13, kHidden);
  builder.plan.embedding_norm = Centered(builder, "embedding_norm", kHidden);
  for (int64_t layer : {0, 1}) {
    const std::string label = "l" + std::to_string(layer);
    for (const bool mlp : {false, true}) {
      Mixer mixer;
      if (mlp) {
        mixer = ShiftedMlp(builder, label + "m");
      } else {
        mixer = Mixer7(builder, label, layer == 0);
      }
      test::AddBlock(builder, layer, {mixer});
      Block& block = builder.plan.blocks.back();
      block.pre_norm.centered = true;
      block.pre_norm.bias =
          builder.Vector(label + "bias" + std::to_string(mlp),
                         NamedRandom(label + "bias" + std::to_string(mlp)).Values(kHidden, 0.3f));
    }
  }
  return builder;
}

struct Runner {
  explicit Runner(const PlanBuilder& builder)
      : plan(builder.plan), weights(builder.Bind()), executor(MakeInterpreter(builder.Lower())) {}

  Rows Until(const std::string& op) const {
    const SequenceId id = executor->CreateSequence();
    Rows rows = test::RowsUntil(*executor, op, id, kTokens);
    executor->FreeSequence(id);
    return rows;
  }
  double V(VectorId id, size_t i) const { return weights->vectors[static_cast<size_t>(id)][i]; }

  std::vector<double> LayerNorm(const RmsNorm& norm, const std::vector<double>& x) const {
    const size_t size = x.size() / static_cast<size_t>(norm.groups);
    std::vector<double> out;
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t begin = i / size * size;
      double mean = 0;
      for (size_t j = begin; j < begin + size; ++j) mean += x[j] / static_cast<double>(size);
      double variance = 0;
      for (size_t j = begin; j < begin + size; ++j) {
        variance += (x[j] - mean) * (x[j] - mean) / static_cast<double>(size);
      }
      out.push_back((x[i] - mean) / std::sqrt(variance + norm.eps) * V(norm.weight, i) +
                    V(norm.bias, i));
    }
    return out;
  }

  std::vector<double> Multiply(const Linear& linear, const std::vector<double>& x) const {
    const auto rows = static_cast<size_t>(plan.matrices[static_cast<size_t>(linear.weight)].rows);
    std::vector<double> y;
    for (size_t r = 0; r < rows; ++r) {
      y.push_back(linear.bias == kNoId ? 0.0 : V(linear.bias, r));
      for (size_t c = 0; c < x.size(); ++c) {
        y.back() += test::WeightAt(*weights, linear.weight, r, c) * x[c];
      }
    }
    return y;
  }

  Plan plan;
  std::shared_ptr<const BoundWeights> weights;
  std::unique_ptr<Executor> executor;
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

TEST(Rwkv7Program, GoldenOpList) {
  const Program program = Rwkv7Plan().Lower();
  std::string found;
  for (const Op& op : program.ops) {
    if (op.layer == 1) {
      found += op.name.substr(9) + " -> " +
               program.buffers[static_cast<size_t>(OutputOf(op))].name + "\n";
    }
  }
  EXPECT_EQ(found,
            "rwkv7.shift -> rwkv7.shift\n"
            "rwkv7.r -> rwkv7.r\n"
            "rwkv7.k -> rwkv7.k\n"
            "rwkv7.v -> rwkv7.v\n"
            "rwkv7.decay_down -> rwkv7.decay_down\n"
            "rwkv7.decay_up -> rwkv7.decay_up\n"
            "rwkv7.rate_down -> rwkv7.rate_down\n"
            "rwkv7.rate_up -> rwkv7.rate_up\n"
            "rwkv7.gate_down -> rwkv7.gate_down\n"
            "rwkv7.gate_up -> rwkv7.gate_up\n"
            "rwkv7.value_mix_down -> rwkv7.value_mix_down\n"
            "rwkv7.value_mix_up -> rwkv7.value_mix_up\n"
            "rwkv7.scan -> rwkv7.scan\n"
            "rwkv7.output -> residual\n"
            "mlp.shift -> mlp.shift\n"
            "mlp.gate_up -> mlp.gate_up\n"
            "mlp.down -> residual\n");
  // The first layer's v has a buffer that no other op writes.
  EXPECT_EQ(std::get<Rwkv7Op>(
                program.ops[static_cast<size_t>(program.FindOp("layers.1.rwkv7.scan"))].body)
                .first_value,
            OutputOf(program.ops[static_cast<size_t>(program.FindOp("layers.0.rwkv7.v"))]));
  EXPECT_NE(ProgramString(program).find("rwkv7 scan, heads 2 x 3, mixes the first v"),
            std::string::npos);
}

TEST(Rwkv7Program, EmbeddingAndShiftEqualTheFormulas) {
  const Runner runner(Rwkv7Plan());
  const Rows x = runner.Until("embed");
  for (size_t t = 0; t < kTokens.size(); ++t) {
    std::vector<double> row;
    for (size_t c = 0; c < kHidden; ++c) {
      row.push_back(1.5 * test::WeightAt(*runner.weights, runner.plan.embedding,
                                         static_cast<size_t>(kTokens[t]), c));
    }
    ExpectNear({x[t]}, {runner.LayerNorm(*runner.plan.embedding_norm, row)});
  }
  const auto& mixer = std::get<Rwkv7>(runner.plan.blocks[0].mixers[0]);
  Rows expected(kTokens.size());
  std::vector<double> previous(kHidden);
  for (size_t t = 0; t < kTokens.size(); ++t) {
    const std::vector<double> y = runner.LayerNorm(runner.plan.blocks[0].pre_norm, x[t]);
    for (size_t i = 0; i < 6 * kHidden; ++i) {
      const size_t c = i % kHidden;
      expected[t].push_back(y[c] + runner.V(mixer.shift_mix, i) * (previous[c] - y[c]));
    }
    previous = y;
  }
  const Rows shifted = runner.Until("layers.0.rwkv7.shift");
  ExpectNear(shifted, expected);
  // k reads the third part, the decay's low rank the second through tanh.
  const Rows k = runner.Until("layers.0.rwkv7.k");
  const Rows decay = runner.Until("layers.0.rwkv7.decay_down");
  for (size_t t = 0; t < kTokens.size(); ++t) {
    const auto part = [&](std::ptrdiff_t p) {
      return std::vector<double>(shifted[t].begin() + p * kHidden,
                                 shifted[t].begin() + (p + 1) * kHidden);
    };
    ExpectNear({k[t]}, {runner.Multiply(mixer.k, part(2))});
    std::vector<double> low = runner.Multiply(mixer.decay.down, part(1));
    for (double& value : low) value = std::tanh(value);
    ExpectNear({decay[t]}, {low});
  }
}

// S_t = S_{t-1} diag(w) - (S kappa) (alpha kappa)^T + v k^T, here transposed.
TEST(Rwkv7Program, ScanMatchesTheMatrixForm) {
  const Runner runner(Rwkv7Plan());
  const auto& m = std::get<Rwkv7>(runner.plan.blocks[2].mixers[0]);
  const std::string prefix = "layers.1.rwkv7.";
  const Rows r = runner.Until(prefix + "r");
  const Rows k = runner.Until(prefix + "k");
  const Rows v = runner.Until(prefix + "v");
  const Rows first_v = runner.Until("layers.0.rwkv7.v");
  const Rows w = runner.Until(prefix + "decay_up");
  const Rows a = runner.Until(prefix + "rate_up");
  const Rows g = runner.Until(prefix + "gate_up");
  const Rows mix = runner.Until(prefix + "value_mix_up");
  Rows expected(kTokens.size());
  for (size_t head = 0; head < kHeads; ++head) {
    Rows state(kDim, std::vector<double>(kDim));  // [value, key]
    for (size_t t = 0; t < kTokens.size(); ++t) {
      const size_t at = head * kDim;
      std::vector<double> kappa, key, value;
      double squares = 0;
      double own = 0;
      for (size_t i = at; i < at + kDim; ++i) {
        kappa.push_back(k[t][i] * runner.V(m.key_scale, i));
        squares += kappa.back() * kappa.back();
        key.push_back(k[t][i] * (1 + (Sigmoid(a[t][i]) - 1) * runner.V(m.key_rate, i)));
        value.push_back(v[t][i] + (first_v[t][i] - v[t][i]) * Sigmoid(mix[t][i]));
        own += r[t][i] * key.back() * runner.V(m.bonus, i);
      }
      for (double& x : kappa) x /= std::sqrt(squares);
      std::vector<double> y;
      for (size_t c = 0; c < kDim; ++c) {
        double found = 0;
        for (size_t n = 0; n < kDim; ++n) found += state[c][n] * kappa[n];
        y.push_back(0);
        for (size_t n = 0; n < kDim; ++n) {
          state[c][n] = state[c][n] * std::exp(-std::exp(-0.5) * Sigmoid(w[t][at + n])) -
                        found * Sigmoid(a[t][at + n]) * kappa[n] + value[c] * key[n];
          y[c] += state[c][n] * r[t][at + n];
        }
      }
      double mean = 0;
      for (double value_of : y) mean += value_of / kDim;
      double variance = 0;
      for (double value_of : y) variance += (value_of - mean) * (value_of - mean) / kDim;
      for (size_t c = 0; c < kDim; ++c) {
        const double normed =
            (y[c] - mean) / std::sqrt(variance + m.norm.eps) * runner.V(m.norm.weight, at + c) +
            runner.V(m.norm.bias, at + c);
        expected[t].push_back((normed + own * value[c]) * g[t][at + c]);
      }
    }
  }
  ExpectNear(runner.Until(prefix + "scan"), expected);
}

TEST(Rwkv7Program, ChunksChangeNothing) {
  const Runner runner(Rwkv7Plan());
  test::ExpectChunksChangeNothing(*runner.executor, kTokens);
}

TEST(Rwkv7Program, VerifierFindsFaults) {
  const auto expect = [](const std::string& name, const std::function<void(OpBody&)>& change,
                         const std::string& words) {
    Program program = Rwkv7Plan().Lower();
    change(program.ops[static_cast<size_t>(program.FindOp("layers.1." + name))].body);
    try {
      VerifyProgram(program);
      ADD_FAILURE() << "accepted; expected a message with " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const auto scan = [](OpBody& body) -> Rwkv7Op& { return std::get<Rwkv7Op>(body); };
  expect(
      "rwkv7.scan", [&](OpBody& op) { scan(op).state = 0; }, "its wkv state is 'shift'");
  expect(
      "rwkv7.scan", [&](OpBody& op) { scan(op).k = 0; }, "6 wide rows");
  expect(
      "rwkv7.scan", [&](OpBody& op) { scan(op).first_value = kNoId; }, "there is no buffer");
  expect(
      "rwkv7.scan", [&](OpBody& op) { scan(op).mixer.bonus = scan(op).mixer.shift_mix; },
      "its bonus has 42");
  expect(
      "rwkv7.scan", [&](OpBody& op) { scan(op).mixer.norm.groups = 1; }, "norm");
  expect(
      "rwkv7.shift", [](OpBody& op) { std::get<TokenShiftOp>(op).state = 1; }, "shift state");
  expect(
      "rwkv7.shift", [](OpBody& op) { std::get<TokenShiftOp>(op).parts = 5; }, "mix has 42");
  expect(
      "rwkv7.k", [](OpBody& op) { std::get<LinearOp>(op).input_begin = 36; },
      "columns outside its input");
  expect(
      "rwkv7.k", [](OpBody& op) { std::get<LinearOp>(op).input_begin = -2; },
      "columns outside its input");
}

TEST(Rwkv7Program, Cost) {
  const Program program = Rwkv7Plan().Lower();
  const OpCost shift = CostOf(program, program.FindOp("layers.0.rwkv7.shift"), 5, 2, 9);
  EXPECT_EQ(shift.weight_bytes, (6 * 7 + 7 + 7) * 4);
  EXPECT_EQ(shift.state_bytes, 2 * 2 * 7 * 4);
  const OpCost scan = CostOf(program, program.FindOp("layers.0.rwkv7.scan"), 5, 2, 9);
  EXPECT_EQ(scan.weight_bytes, 5 * 6 * 4);
  EXPECT_EQ(scan.state_bytes, 2 * 2 * 18 * 4);
  EXPECT_EQ(scan.flops, 5 * 9 * 18);
}

TEST(Rwkv7Program, PlansAreChecked) {
  const auto expect = [](const std::function<void(Plan&, Rwkv7&)>& change,
                         const std::string& words) {
    Plan plan = Rwkv7Plan().plan;
    change(plan, std::get<Rwkv7>(plan.blocks[2].mixers[0]));
    try {
      ValidatePlan(plan);
      ADD_FAILURE() << "accepted; expected a message with " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  EXPECT_NO_THROW(ValidatePlan(Rwkv7Plan().plan));
  expect([](Plan&, Rwkv7& m) { m.heads = 0; }, "heads is 0");
  expect([](Plan&, Rwkv7& m) { m.head_dim = kMaxSize + 1; }, "head_dim is");
  expect([](Plan&, Rwkv7& m) { m.value_mix.reset(); }, "value_mix is missing");
  expect([](Plan& plan, Rwkv7&) { plan.blocks.erase(plan.blocks.begin()); },
         "no mixer before it has values");
  expect([](Plan&, Rwkv7& m) { m.norm.bias = kNoId; }, "centered and have a bias");
  expect([](Plan&, Rwkv7& m) { m.norm.groups = 1; }, "groups of norm is 1");
  expect([](Plan&, Rwkv7& m) { m.shift_mix = m.bonus; }, "shift_mix is");
  expect([](Plan&, Rwkv7& m) { m.decay.up = m.rate.up; }, "decay up");
  expect([](Plan&, Rwkv7& m) { m.output = m.r; }, "output is");
  expect([](Plan& plan, Rwkv7&) { plan.final_norm.bias = plan.blocks[0].pre_norm.bias; },
         "final_norm should be centered and have a bias, or neither");
  const std::string text = PlanString(Rwkv7Plan().plan);
  EXPECT_NE(text.find("Rwkv7(heads=2 head_dim=3 r=[6x7] k=[6x7] v=[6x7] "
                      "decay=[6x2]+bias<-tanh<-[2x7] rate=[6x4]+bias<-[4x7] "
                      "gate=[6x5]+bias<-sigmoid<-[5x7] value_mix=[6x3]+bias<-[3x7]"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("shifted"), std::string::npos);
  EXPECT_NE(text.find("norm=layer("), std::string::npos);
}

}  // namespace
}  // namespace adder
