// Windows, norms of v, values that are keys, shared keys, mixed heads, and lightning attention, run
// by the interpreter. Expectations are computed here from the formulas over the whole sequence.
#include <gtest/gtest.h>

#include <cmath>

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

const std::vector<int32_t> kTokens{3, 11, 0, 7, 7, 12, 5};

struct Runner {
  explicit Runner(const PlanBuilder& builder)
      : plan(builder.plan), weights(builder.Bind()), executor(MakeInterpreter(builder.Lower())) {}

  Rows Until(const std::string& op) {
    const SequenceId id = executor->CreateSequence();
    const Rows rows = test::RowsUntil(*executor, op, id, kTokens);
    executor->FreeSequence(id);
    return rows;
  }
  double V(VectorId id, size_t i) const { return weights->vectors[static_cast<size_t>(id)][i]; }

  Plan plan;
  std::shared_ptr<const BoundWeights> weights;
  std::unique_ptr<Executor> executor;
};

// heads 4 over kv_heads 2, head_dim 6, no rotation.
Attention PlainAttention(PlanBuilder& builder, const std::string& label) {
  Attention a = test::TestAttention(builder, label, 7);
  a.rope.reset();
  return a;
}

// x / its root mean square.
std::vector<double> Normed(std::vector<double> x, double eps) {
  double mean = 0;
  for (const double value : x) mean += value * value / static_cast<double>(x.size());
  for (double& value : x) value /= std::sqrt(mean + eps);
  return x;
}

std::vector<double> Head(const std::vector<double>& row, size_t begin) {
  return {row.begin() + static_cast<std::ptrdiff_t>(begin),
          row.begin() + static_cast<std::ptrdiff_t>(begin) + 6};
}

// Attention of the rows' queries to `keys` and `values` [12] of each token, `window` tokens back.
Rows Attend(const Rows& q, const Rows& keys, const Rows& values, double scale, size_t window) {
  Rows out(q.size(), std::vector<double>(24));
  for (size_t t = 0; t < q.size(); ++t) {
    for (size_t head = 0; head < 4; ++head) {
      double total = 0;
      for (size_t s = t + 1 > window ? t + 1 - window : 0; s <= t; ++s) {
        double dot = 0;
        for (size_t d = 0; d < 6; ++d) dot += q[t][head * 6 + d] * keys[s][head / 2 * 6 + d];
        const double weight = std::exp(scale * dot);
        total += weight;
        for (size_t d = 0; d < 6; ++d) out[t][head * 6 + d] += weight * values[s][head / 2 * 6 + d];
      }
      for (size_t d = 0; d < 6; ++d) out[t][head * 6 + d] /= total;
    }
  }
  return out;
}

TEST(AttentionOptions, AWindowEndsWithTheTokenItself) {
  for (const int64_t window : {1, 3, 100}) {
    PlanBuilder builder = test::StartPlan(13, 7);
    Attention a = PlainAttention(builder, "a");
    a.window = window;
    test::AddBlock(builder, 0, {a});
    Runner runner(builder);
    const Rows qkv = runner.Until("layers.0.attention.qkv");
    Rows keys, values;
    for (const auto& row : qkv) {
      keys.emplace_back(row.begin() + 24, row.begin() + 36);
      values.emplace_back(row.begin() + 36, row.end());
    }
    ExpectNear(runner.Until("layers.0.attention.attend"),
               Attend(qkv, keys, values, double{0.8f}, static_cast<size_t>(window)));
    const Program& program = runner.executor->program();
    const OpCost cost = CostOf(program, program.FindOp("layers.0.attention.attend"), 4, 1, 10);
    const int64_t pairs = window == 100 ? 4 * 10 + 10 : 4 * window;
    EXPECT_EQ(cost.flops, 4 * 24 * pairs);
    EXPECT_EQ(cost.state_bytes, (std::min<int64_t>(10, window - 1) + 4) * 2 * 12 * 4);
  }
}

// The second block has queries alone; its keys are those of the first, whose values are its keys
// before their norm.
TEST(AttentionOptions, ValuesFromKeysAndKeysOfAnEarlierBlock) {
  PlanBuilder builder = test::StartPlan(13, 7);
  Attention owner;
  owner.heads = 4;
  owner.kv_heads = 2;
  owner.head_dim = 6;
  owner.scale = 0.8f;
  Attention guest = owner;
  owner.values_from_keys = true;
  owner.qkv = builder.Linear("a.qk", 36, 7);
  owner.output = builder.Linear("a.out", 7, 24);
  owner.k_norm = builder.Norm("a.k_norm", 6);
  owner.v_norm = RmsNorm{kNoId, 0.01f, 1};
  guest.qkv = builder.Linear("b.q", 24, 7);
  guest.output = builder.Linear("b.out", 7, 24);
  guest.q_norm = RmsNorm{kNoId, 0.02f, 1};
  guest.shared_kv_block = 0;
  guest.window = 2;
  test::AddBlock(builder, 0, {owner});
  test::AddBlock(builder, 1, {guest});
  Runner runner(builder);
  const Rows qk = runner.Until("layers.0.attention.qkv");
  Rows keys, values;
  for (const auto& row : qk) {
    keys.emplace_back();
    values.emplace_back();
    for (size_t head = 0; head < 2; ++head) {
      const std::vector<double> k = Normed(Head(row, 24 + 6 * head), 1e-3f);
      for (size_t d = 0; d < 6; ++d) {
        keys.back().push_back(k[d] * runner.V(owner.k_norm->weight, d));
      }
      const std::vector<double> v = Normed(Head(row, 24 + 6 * head), 0.01f);
      values.back().insert(values.back().end(), v.begin(), v.end());
    }
  }
  ExpectNear(runner.Until("layers.0.attention.attend"),
             Attend(qk, keys, values, double{0.8f}, 100));
  Rows queries;
  for (const auto& row : runner.Until("layers.1.attention.qkv")) {
    queries.emplace_back();
    for (size_t head = 0; head < 4; ++head) {
      const std::vector<double> q = Normed(Head(row, 6 * head), 0.02f);
      queries.back().insert(queries.back().end(), q.begin(), q.end());
    }
  }
  ExpectNear(runner.Until("layers.1.attention.attend"),
             Attend(queries, keys, values, double{0.8f}, 2));
  EXPECT_EQ(MakeStateLayout(builder.plan).kv.size(), 1u);
}

// taps 3, then 2, so that the first tokens meet the bias of what came before.
TEST(AttentionOptions, MixingConvolvesHeadsAndDelaysValues) {
  PlanBuilder builder = test::StartPlan(13, 7);
  Attention a = PlainAttention(builder, "a");
  HeadMixing mixing{3, 2};
  const auto vector = [&](const char* name, int64_t size) {
    return builder.Vector(name, NamedRandom(name).Values(size, 0.5f));
  };
  mixing.conv_weight = vector("conv", 3 * 36);
  mixing.conv_bias = vector("conv_bias", 36);
  mixing.group_weight = vector("group", 2 * 6 * 36);
  mixing.group_bias = vector("group_bias", 36);
  a.mixing = mixing;
  test::AddBlock(builder, 0, {a});
  Runner runner(builder);
  const Rows rows = runner.Until("layers.0.attention.qkv");
  const auto convolved = [&](int64_t t, size_t c) {
    double sum = runner.V(mixing.conv_bias, c);
    for (int64_t lag = 0; lag < 3; ++lag) {
      if (t - lag < 0) continue;
      sum += runner.V(mixing.conv_weight, static_cast<size_t>(2 - lag) * 36 + c) *
             rows[static_cast<size_t>(t - lag)][c];
    }
    return sum;
  };
  Rows expected;
  for (size_t t = 0; t < rows.size(); ++t) {
    const auto mean = [&](size_t head, size_t d) {
      return (rows[t][head * 6 + d] + rows[t][24 + head / 2 * 6 + d]) / 2;
    };
    expected.emplace_back();
    for (size_t c = 0; c < 36; ++c) {
      const size_t head = c / 6;
      double sum = runner.V(mixing.group_bias, c);
      for (size_t j = 0; j < 6; ++j) {
        for (size_t lag = 0; lag < 2; ++lag) {
          sum += runner.V(mixing.group_weight, ((1 - lag) * 6 + j) * 36 + c) *
                 convolved(static_cast<int64_t>(t) - static_cast<int64_t>(lag), head * 6 + j);
        }
      }
      sum += head < 4 ? mean(head, c % 6)
                      : (mean(2 * (head - 4), c % 6) + mean(2 * (head - 4) + 1, c % 6)) / 2;
      expected[t].push_back(sum);
    }
    for (size_t i = 0; i < 6; ++i) expected[t].push_back(rows[t][36 + i]);
    for (size_t i = 0; i < 6; ++i) expected[t].push_back(t == 0 ? 0.0 : rows[t - 1][42 + i]);
  }
  ExpectNear(runner.Until("layers.0.attention.mix"), expected);
  const StateLayout layout = MakeStateLayout(builder.plan);
  ASSERT_EQ(layout.recurrent.size(), 2u);
  EXPECT_EQ(layout.recurrent[0].shape, (Shape{3, 36}));
  EXPECT_EQ(layout.recurrent[1].shape, (Shape{6}));
}

// heads 3 x 4.
PlanBuilder LightningPlan() {
  PlanBuilder builder = test::StartPlan(13, 7);
  LightningAttention m;
  m.heads = 3;
  m.head_dim = 4;
  m.slopes = {0.2f, 0.7f, 0.0f};
  m.qkv = builder.Linear("qkv", 36, 7);
  m.norm = builder.Norm("norm", 12);
  m.gate = builder.Linear("gate", 12, 7);
  m.output = builder.Linear("out", 7, 12);
  test::AddBlock(builder, 0, {m});
  return builder;
}

// y_t = sum over s <= t of exp(-slope (t - s)) (q_t . k_s) v_s.
TEST(Lightning, ScanMatchesTheClosedForm) {
  Runner runner(LightningPlan());
  const auto& m = std::get<LightningAttention>(runner.plan.blocks[0].mixers[0]);
  const Rows qkv = runner.Until("layers.0.lightning.qkv");
  Rows expected;
  for (size_t t = 0; t < qkv.size(); ++t) {
    std::vector<double> y(12);
    for (size_t head = 0; head < 3; ++head) {
      for (size_t s = 0; s <= t; ++s) {
        double dot = 0;
        for (size_t n = 0; n < 4; ++n) dot += qkv[t][12 * head + n] * qkv[s][12 * head + 4 + n];
        const double decay = std::exp(-double{m.slopes[head]} * static_cast<double>(t - s));
        for (size_t p = 0; p < 4; ++p) y[4 * head + p] += decay * dot * qkv[s][12 * head + 8 + p];
      }
    }
    y = Normed(y, m.norm.eps);
    for (size_t i = 0; i < 12; ++i) y[i] *= runner.V(m.norm.weight, i);
    expected.push_back(std::move(y));
  }
  ExpectNear(runner.Until("layers.0.lightning.scan"), expected);
}

TEST(Lightning, TheGateIsASigmoidOfTheInput) {
  Runner runner(LightningPlan());
  const Block& block = runner.plan.blocks[0];
  const auto& m = std::get<LightningAttention>(block.mixers[0]);
  const Rows scanned = runner.Until("layers.0.lightning.scan");
  const Rows x = runner.Until("embed");
  Rows expected;
  for (size_t t = 0; t < x.size(); ++t) {
    const std::vector<double> normed = Normed(x[t], block.pre_norm.eps);
    expected.emplace_back();
    for (size_t r = 0; r < 12; ++r) {
      double sum = 0;
      for (size_t c = 0; c < 7; ++c) {
        sum += test::WeightAt(*runner.weights, m.gate.weight, r, c) * normed[c] *
               runner.V(block.pre_norm.weight, c);
      }
      expected[t].push_back(scanned[t][r] / (1 + std::exp(-sum)));
    }
  }
  ExpectNear(runner.Until("layers.0.lightning.gate"), expected);
  const Program program = LightningPlan().Lower();
  EXPECT_EQ(CostOf(program, program.FindOp("layers.0.lightning.scan"), 5, 2, 0).state_bytes,
            2 * 2 * 3 * 4 * 4 * 4);
}

// A router with an MLP of its own: the second layer's reads what the first left, and a token may
// choose no expert.
// Compares the second layer's router with the formulas; returns how many of the tokens choose no
// expert, a choice whose score has `bias` added.
int IdleTokens(float bias) {
  int idle = 0;
  PlanBuilder builder = test::StartPlan(13, 7);
  for (int64_t layer = 0; layer < 2; ++layer) {
    const std::string label = "e" + std::to_string(layer);
    MoeMlp moe;
    moe.experts = 5;
    moe.top_k = 1;
    moe.intermediate = 6;
    for (int e = 0; e < 5; ++e) {
      const std::string expert = label + ".expert" + std::to_string(e);
      moe.gate_up.push_back(builder.Matrix(expert + ".gate_up", 2 * 6, 7));
      moe.down.push_back(builder.Matrix(expert + ".down", 7, 6));
    }
    moe.router = builder.Linear(label + ".out", 6, 4);
    moe.routing.normalize = false;
    moe.routing.idle = 1;
    moe.routing.choice_bias = builder.Vector(label + ".bias", {0, 0, 0, 0, 0, bias});
    RouterMlp mlp;
    mlp.width = 4;
    mlp.down = builder.Linear(label + ".down", 4, 7, true);
    if (layer > 0) mlp.carried_scale = builder.Vector(label + ".scale", {0.5f, -1.0f, 2.0f, 0.3f});
    mlp.norm = builder.Norm(label + ".norm", 4);
    mlp.fc1 = builder.Linear(label + ".fc1", 4, 4, true);
    mlp.fc2 = builder.Linear(label + ".fc2", 4, 4, true);
    moe.router_mlp = mlp;
    test::AddBlock(builder, layer, {moe});
  }
  Runner runner(builder);
  const Rows first = runner.Until("layers.0.moe.router_down");
  const Rows carried = runner.Until("layers.1.moe.router_carry");
  const Rows own = runner.Until("layers.1.moe.router_down");
  const auto& moe = std::get<MoeMlp>(runner.plan.blocks[1].mixers[0]);
  Rows expected;
  for (size_t t = 0; t < own.size(); ++t) {
    expected.emplace_back();
    for (size_t i = 0; i < 4; ++i) {
      expected[t].push_back(own[t][i] + runner.V(moe.router_mlp->carried_scale, i) * first[t][i]);
    }
  }
  ExpectNear(carried, expected);
  const Rows hidden = runner.Until("layers.1.moe.router_fc2");
  const Rows routed = runner.Until("layers.1.moe.router");
  for (size_t t = 0; t < hidden.size(); ++t) {
    std::vector<double> scores;
    double total = 0;
    for (size_t e = 0; e < 6; ++e) {
      double logit = 0;
      for (size_t i = 0; i < 4; ++i) {
        logit += test::WeightAt(*runner.weights, moe.router.weight, e, i) * hidden[t][i];
      }
      scores.push_back(std::exp(logit));
      total += scores.back();
    }
    size_t best = 0;
    for (size_t e = 1; e < 6; ++e) {
      const auto choice = [&](size_t c) {
        return scores[c] / total + runner.V(moe.routing.choice_bias, c);
      };
      if (choice(e) > choice(best)) best = e;
    }
    idle += best == 5;
    EXPECT_NEAR(routed[t][0], best == 5 ? 0.0 : scores[best] / total, 1e-5);
    EXPECT_EQ(routed[t][1], best == 5 ? 0.0 : static_cast<double>(best));
  }
  return idle;
}

TEST(RouterMlp, CarriesItsStateAndKnowsAnIdleChoice) {
  EXPECT_EQ(IdleTokens(-1.0f), 0);
  IdleTokens(0.0f);
  EXPECT_EQ(IdleTokens(1.0f), 7);
}

}  // namespace
}  // namespace adder
