#include "program/interpreter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "program/plan_builder_for_test.h"
#include "program/rows_for_test.h"

// Every expectation below is computed here, from the formula in closed form over the whole
// sequence, never by the recurrence or the helper functions of the interpreter.
namespace adder {
namespace {

using test::ExpectNear;
using test::PlanBuilder;
using test::Rows;

// Interpreter results are sums in f64 rounded to f32 a few times: 1e-5 relative is generous for
// values around 1 and far below any error in a formula.
// A program and its interpreter; runs ops over one fresh sequence.
struct Runner {
  explicit Runner(const PlanBuilder& builder)
      : plan(builder.plan), weights(builder.Bind()), executor(MakeInterpreter(builder.Lower())) {}
  // Formulas alone.
  Runner(Plan formulas, std::shared_ptr<const BoundWeights> values)
      : plan(std::move(formulas)), weights(std::move(values)) {}

  Rows Until(const std::string& op, const std::vector<int32_t>& tokens) {
    const SequenceId id = executor->CreateSequence();
    const Rows out = Until(op, id, tokens);
    executor->FreeSequence(id);
    return out;
  }
  Rows Until(const std::string& op, SequenceId id, const std::vector<int32_t>& tokens) {
    return test::RowsUntil(*executor, op, id, tokens);
  }
  float W(MatrixId id, int64_t row, int64_t col) const {
    const WeightMatrix& matrix = weights->matrices[static_cast<size_t>(id)];
    return LoadFloat(matrix.segments[0].data, DType::kF32,
                     static_cast<size_t>(row * matrix.cols + col));
  }
  const std::vector<float>& V(VectorId id) const {
    return weights->vectors[static_cast<size_t>(id)];
  }
  std::vector<double> Norm(const RmsNorm& norm, const std::vector<double>& x) const {
    std::vector<double> out;
    const size_t part = x.size() / static_cast<size_t>(norm.groups);
    for (size_t i = 0; i < x.size(); ++i) {
      const size_t begin = i / part * part;
      double mean = 0;
      for (size_t k = 0; k < part; ++k) mean += x[begin + k] * x[begin + k] / double(part);
      out.push_back(x[i] / std::sqrt(mean + norm.eps) * V(norm.weight)[i]);
    }
    return out;
  }
  std::vector<double> Apply(const Linear& linear, const std::vector<double>& x) const {
    std::vector<double> out(
        static_cast<size_t>(weights->matrices[static_cast<size_t>(linear.weight)].rows));
    for (size_t r = 0; r < out.size(); ++r) {
      out[r] = linear.bias == kNoId ? 0 : V(linear.bias)[r];
      for (size_t k = 0; k < x.size(); ++k) {
        out[r] += double{W(linear.weight, static_cast<int64_t>(r), static_cast<int64_t>(k))} * x[k];
      }
    }
    return out;
  }

  Plan plan;
  std::shared_ptr<const BoundWeights> weights;
  std::unique_ptr<Executor> executor;
};

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

const std::vector<int32_t> kTokens{3, 11, 0, 7, 7, 12, 5};

TEST(Interpreter, EmbeddingRowsAreScaled) {
  Runner runner(test::TwoLayerPlan());
  const Rows found = runner.Until("embed", {12, 4});
  Rows expected(2);
  for (int64_t k = 0; k < 7; ++k) {
    expected[0].push_back(1.5 * runner.W(runner.plan.embedding, 12, k));
    expected[1].push_back(1.5 * runner.W(runner.plan.embedding, 4, k));
  }
  ExpectNear(found, expected);
}

TEST(Interpreter, LinearWithNormAndBias) {
  Runner runner(test::TwoLayerPlan());
  const Block& block = runner.plan.blocks[0];
  Rows expected;
  for (const auto& x : runner.Until("embed", kTokens)) {
    expected.push_back(
        runner.Apply(std::get<Mamba2>(block.mixers[0]).in_proj, runner.Norm(block.pre_norm, x)));
  }
  ExpectNear(runner.Until("layers.0.mamba2.in_proj", kTokens), expected);
}

TEST(Interpreter, GroupedNormAndScaledAdd) {
  Runner runner(test::TwoLayerPlan());
  const auto& mixer = std::get<Mamba2>(runner.plan.blocks[0].mixers[0]);
  Rows expected = runner.Until("embed", kTokens);
  const Rows scanned = runner.Until("layers.0.mamba2.scan", kTokens);
  for (size_t t = 0; t < kTokens.size(); ++t) {
    const auto y = runner.Apply(mixer.out_proj, runner.Norm(*mixer.gated_norm, scanned[t]));
    for (size_t i = 0; i < y.size(); ++i) expected[t][i] += double{0.6f} * y[i];
  }
  ExpectNear(runner.Until("layers.0.mamba2.out_proj", kTokens), expected);
}

TEST(Interpreter, SiluOfGateTimesUp) {
  Runner runner(test::TwoLayerPlan());
  const Block& block = runner.plan.blocks[3];
  Rows expected;
  for (const auto& x : runner.Until("layers.1.attention.o_proj", kTokens)) {
    const auto y =
        runner.Apply(std::get<DenseMlp>(block.mixers[0]).gate_up, runner.Norm(block.pre_norm, x));
    expected.emplace_back();
    for (size_t i = 0; i < 11; ++i) expected.back().push_back(y[i] * Sigmoid(y[i]) * y[11 + i]);
  }
  ExpectNear(runner.Until("layers.1.mlp.gate_up", kTokens), expected);
}

// The scan of a whole sequence from its in_proj rows: y_t = d x_t + sum over s <= t of
// (C_t . B_s) dt_s exp(a * (dt_{s+1} + ... + dt_t)) x_s.
Rows Mamba2ClosedForm(const Runner& runner, const Mamba2& m, const Rows& projected) {
  const size_t tokens = projected.size();
  const auto inner = static_cast<size_t>(m.heads * m.head_dim);
  const size_t channels = inner + 2 * static_cast<size_t>(m.groups * m.d_state);
  Rows conv(tokens, std::vector<double>(channels));
  for (size_t t = 0; t < tokens; ++t) {
    for (size_t c = 0; c < channels; ++c) {
      double sum = runner.V(m.conv_bias)[c];
      for (size_t lag = 0; lag < 4 && lag <= t; ++lag) {
        // The last tap meets the newest input.
        sum += runner.V(m.conv_weight)[(3 - lag) * channels + c] * projected[t - lag][inner + c];
      }
      conv[t][c] = sum * Sigmoid(sum);
    }
  }
  Rows out(tokens, std::vector<double>(inner));
  for (size_t channel = 0; channel < inner; ++channel) {
    const size_t head = channel / 3;
    const size_t group = head / 2;
    std::vector<double> dt;
    for (size_t t = 0; t < tokens; ++t) {
      const double raw = projected[t][inner + channels + head] + runner.V(m.dt_bias)[head];
      const double soft = std::log(1 + std::exp(raw));
      dt.push_back(std::min(std::max(soft, double{m.dt_min}), double{m.dt_max}));
    }
    for (size_t t = 0; t < tokens; ++t) {
      double y = runner.V(m.d)[head] * conv[t][channel];
      for (size_t s = 0; s <= t; ++s) {
        double dot = 0;
        for (size_t n = 0; n < 5; ++n) {
          dot += conv[t][inner + 10 + group * 5 + n] * conv[s][inner + group * 5 + n];
        }
        const double passed = std::accumulate(dt.begin() + static_cast<std::ptrdiff_t>(s) + 1,
                                              dt.begin() + static_cast<std::ptrdiff_t>(t) + 1, 0.0);
        y += dot * dt[s] * std::exp(runner.V(m.a)[head] * passed) * conv[s][channel];
      }
      const double z = projected[t][channel];
      out[t][channel] = y * z * Sigmoid(z);
    }
  }
  return out;
}

TEST(Interpreter, Mamba2ScanMatchesTheClosedForm) {
  Runner runner(test::TwoLayerPlan());
  const auto& m = std::get<Mamba2>(runner.plan.blocks[0].mixers[0]);
  const Rows projected = runner.Until("layers.0.mamba2.in_proj", kTokens);
  // The clamps must bite somewhere and stay away elsewhere for this to test them.
  bool below = false;
  bool between = false;
  bool above = false;
  for (const auto& row : projected) {
    for (size_t head = 0; head < 4; ++head) {
      const double soft = std::log(1 + std::exp(row[44 + head] + runner.V(m.dt_bias)[head]));
      below = below || soft < m.dt_min;
      between = between || (soft > m.dt_min && soft < m.dt_max);
      above = above || soft > m.dt_max;
    }
  }
  EXPECT_TRUE(below && between && above);
  ExpectNear(runner.Until("layers.0.mamba2.scan", kTokens), Mamba2ClosedForm(runner, m, projected));
}

TEST(Interpreter, Mamba2ScanContinuesFromItsState) {
  Runner runner(test::TwoLayerPlan());
  const Rows whole = runner.Until("layers.0.mamba2.scan", kTokens);
  for (size_t first : {size_t{1}, size_t{2}, size_t{3}, size_t{5}}) {
    const SequenceId id = runner.executor->CreateSequence();
    const auto split = kTokens.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<int32_t> head(kTokens.begin(), split);
    runner.executor->Forward({{id, head, LogitsRows::kNone}});
    const Rows rest =
        runner.Until("layers.0.mamba2.scan", id, std::vector<int32_t>(split, kTokens.end()));
    EXPECT_EQ(rest, Rows(whole.begin() + static_cast<std::ptrdiff_t>(first), whole.end()));
  }
}

TEST(Interpreter, Mamba2WithoutConvBiasAndWithOneTap) {
  PlanBuilder builder = test::StartPlan(13, 7);
  const Mamba2 m = test::TestMamba2(builder, "m0", 7, /*d_conv=*/1, /*conv_bias=*/false);
  test::AddBlock(builder, 0, {m});
  Runner runner(builder);
  const Rows projected = runner.Until("layers.0.mamba2.in_proj", {5});
  const Rows found = runner.Until("layers.0.mamba2.scan", {5});
  // First token: y = x (d + dt C . B).
  const auto activated = [&](size_t c) {
    const double v = projected[0][12 + c] * runner.V(m.conv_weight)[c];
    return v * Sigmoid(v);
  };
  Rows expected(1);
  for (size_t channel = 0; channel < 12; ++channel) {
    const size_t head = channel / 3;
    double dot = 0;
    for (size_t n = 0; n < 5; ++n) {
      dot += activated(12 + head / 2 * 5 + n) * activated(22 + head / 2 * 5 + n);
    }
    const double dt = std::clamp(
        std::log(1 + std::exp(projected[0][44 + head] + runner.V(m.dt_bias)[head])), 0.2, 2.5);
    const double z = projected[0][channel];
    expected[0].push_back(activated(channel) * (runner.V(m.d)[head] + dt * dot) * z * Sigmoid(z));
  }
  ExpectNear(found, expected);
}

// Causal attention of a whole sequence from its qkv rows; head_dim 6, the first 4 rotate.
Rows AttentionClosedForm(const Rows& qkv, const Attention& a) {
  const auto rotated = [&](size_t t, size_t begin) {
    std::vector<double> v(qkv[t].begin() + static_cast<std::ptrdiff_t>(begin),
                          qkv[t].begin() + static_cast<std::ptrdiff_t>(begin) + 6);
    if (!a.rope) return v;
    for (size_t i = 0; i < 2; ++i) {
      const double angle = double(t) * a.rope->inverse_frequencies[i];
      const double x = v[i];
      const double y = v[i + 2];
      v[i] = x * std::cos(angle) - y * std::sin(angle);
      v[i + 2] = y * std::cos(angle) + x * std::sin(angle);
    }
    return v;
  };
  Rows out(qkv.size(), std::vector<double>(24));
  for (size_t t = 0; t < qkv.size(); ++t) {
    for (size_t head = 0; head < 4; ++head) {
      const size_t kv_head = head / 2;
      double total = 0;
      std::vector<double> sum(6);
      const auto q = rotated(t, head * 6);
      for (size_t s = 0; s <= t; ++s) {
        const auto k = rotated(s, 24 + kv_head * 6);
        const double weight =
            std::exp(a.scale * std::inner_product(q.begin(), q.end(), k.begin(), 0.0));
        total += weight;
        for (size_t d = 0; d < 6; ++d) sum[d] += weight * qkv[s][36 + kv_head * 6 + d];
      }
      for (size_t d = 0; d < 6; ++d) out[t][head * 6 + d] = sum[d] / total;
    }
  }
  return out;
}

TEST(Interpreter, AttentionMatchesTheClosedFormAcrossPages) {
  std::vector<int32_t> tokens;
  test::NamedRandom random("attention tokens");
  for (int i = 0; i < 70; ++i) tokens.push_back(random.Below(13));
  for (const bool rope : {true, false}) {
    PlanBuilder builder = test::StartPlan(13, 7);
    Attention a = test::TestAttention(builder, "a0", 7);
    if (!rope) a.rope.reset();
    test::AddBlock(builder, 0, {a});
    Runner runner(builder);
    ASSERT_EQ(runner.executor->program().layout.page_positions, 64)
        << "70 tokens must cross a page";
    const Rows expected = AttentionClosedForm(runner.Until("layers.0.attention.qkv", tokens), a);
    ExpectNear(runner.Until("layers.0.attention.attend", tokens), expected);

    const SequenceId id = runner.executor->CreateSequence();
    const std::vector<int32_t> head(tokens.begin(), tokens.begin() + 63);
    runner.executor->Forward({{id, head, LogitsRows::kNone}});
    const Rows rest = runner.Until("layers.0.attention.attend", id,
                                   std::vector<int32_t>(tokens.begin() + 63, tokens.end()));
    ExpectNear(rest, Rows(expected.begin() + 63, expected.end()));
  }
}

// Norms of each head alone (q) and of all heads together (k), before or after the rotation.
TEST(Interpreter, NormsOfQueriesAndKeysMatchTheClosedForm) {
  const std::vector<int32_t> tokens{3, 1, 4, 1, 5};
  for (const bool after_rope : {false, true}) {
    PlanBuilder builder = test::StartPlan(13, 7);
    Attention a = test::TestAttention(builder, "a0", 7);
    a.q_norm = builder.Norm("q_norm", 6);
    a.k_norm = builder.Norm("k_norm", 12);
    a.qk_norm_after_rope = after_rope;
    test::AddBlock(builder, 0, {a});
    Runner runner(builder);
    const auto norm = [&](std::vector<double>& row, size_t begin, size_t size, const RmsNorm& n) {
      double squares = 0;
      for (size_t i = begin; i < begin + size; ++i) squares += row[i] * row[i];
      for (size_t i = begin; i < begin + size; ++i) {
        row[i] *= runner.V(n.weight)[i - begin] / std::sqrt(squares / double(size) + n.eps);
      }
    };
    Rows qkv = runner.Until("layers.0.attention.qkv", tokens);
    Attention plain = a;
    for (size_t t = 0; t < qkv.size(); ++t) {
      if (after_rope) {
        // The closed form is to find the rows already rotated.
        for (size_t head = 0; head < 6; ++head) {
          for (size_t i = head * 6; i < head * 6 + 2; ++i) {
            const double angle = double(t) * a.rope->inverse_frequencies[i % 6];
            const double x = qkv[t][i];
            const double y = qkv[t][i + 2];
            qkv[t][i] = x * std::cos(angle) - y * std::sin(angle);
            qkv[t][i + 2] = y * std::cos(angle) + x * std::sin(angle);
          }
        }
        plain.rope.reset();
      }
      for (size_t head = 0; head < 4; ++head) norm(qkv[t], head * 6, 6, *a.q_norm);
      norm(qkv[t], 24, 12, *a.k_norm);
    }
    ExpectNear(runner.Until("layers.0.attention.attend", tokens), AttentionClosedForm(qkv, plain));
  }
}

TEST(Interpreter, MlpWithoutAGateAndWithAnOutputGate) {
  PlanBuilder builder = test::StartPlan(13, 7);
  DenseMlp mlp;
  mlp.intermediate = 11;
  mlp.activation = Activation::kRelu2;
  mlp.gated = false;
  mlp.gate_up = builder.Linear("up", 11, 7, true);
  mlp.down = builder.Linear("down", 7, 11);
  mlp.output_gate = builder.Linear("output_gate", 1, 7, true);
  test::AddBlock(builder, 0, {mlp});
  Runner runner(builder);
  const Rows x = runner.Until("embed", {2, 9});
  Rows expected;
  for (const auto& row : x) {
    const auto normed = runner.Norm(builder.plan.blocks[0].pre_norm, row);
    const double gate = Sigmoid(runner.Apply(mlp.output_gate, normed)[0]);
    expected.push_back(runner.Apply(mlp.gate_up, normed));
    for (double& y : expected.back()) y = y > 0 ? gate * y * y : 0;
  }
  ExpectNear(runner.Until("layers.0.mlp.gate_up", {2, 9}), expected);
}

TEST(Interpreter, ScaledRowsOfALinearMap) {
  PlanBuilder builder = test::StartPlan(13, 7);
  DenseMlp mlp = test::TestMlp(builder, "s0", 7);
  Linear& up = mlp.gate_up;
  up.input_scale = 1.5f;
  up.row_scales = {{4, 0.5f}, {7, 3.0f}, {11, 0.25f}};
  test::AddBlock(builder, 0, {mlp});
  Runner runner(builder);
  Rows expected;
  for (const auto& row : runner.Until("embed", {2, 9})) {
    auto normed = runner.Norm(builder.plan.blocks[0].pre_norm, row);
    for (double& x : normed) x *= 1.5;
    auto y = runner.Apply(up, normed);
    for (size_t r = 0; r < y.size(); ++r) y[r] *= r < 4 ? 0.5 : r < 11 ? 3.0 : 0.25;
    expected.emplace_back();
    for (size_t r = 0; r < 11; ++r) expected.back().push_back(y[r] * Sigmoid(y[r]) * y[11 + r]);
  }
  ExpectNear(runner.Until("layers.0.mlp.gate_up", {2, 9}), expected);
}

TEST(Interpreter, Mamba2NormBeforeTheGate) {
  // Built alike but for the order: the scan's output differs by the gate, then by the norm.
  const auto run = [](bool before) {
    PlanBuilder builder = test::StartPlan(13, 7);
    Mamba2 m = test::TestMamba2(builder, "m0", 7);
    m.norm_before_gate = before;
    test::AddBlock(builder, 0, {m});
    Runner runner(builder);
    return std::make_pair(runner.Until("layers.0.mamba2.in_proj", kTokens),
                          runner.Until("layers.0.mamba2.scan", kTokens));
  };
  const auto [projected, gated] = run(false);
  PlanBuilder builder = test::StartPlan(13, 7);
  const Mamba2 m = test::TestMamba2(builder, "m0", 7);
  Runner norms(builder.plan, builder.Bind());
  Rows expected;
  for (size_t t = 0; t < gated.size(); ++t) {
    std::vector<double> y;
    for (size_t c = 0; c < 12; ++c) {
      const double z = projected[t][c];
      y.push_back(gated[t][c] / (z * Sigmoid(z)));
    }
    expected.push_back(norms.Norm(*m.gated_norm, y));
    for (size_t c = 0; c < 12; ++c) expected[t][c] *= projected[t][c] * Sigmoid(projected[t][c]);
  }
  ExpectNear(run(true).second, expected);
}

TEST(Interpreter, RouterWithSigmoidGroupsAndChoiceBias) {
  PlanBuilder builder = test::StartPlan(13, 7);
  MoeMlp moe;
  moe.experts = 6;
  moe.top_k = 2;
  moe.intermediate = 5;
  moe.activation = Activation::kGeluTanh;
  moe.router = builder.Linear("router", 6, 7, true);
  for (int e = 0; e < 6; ++e) {
    moe.gate_up.push_back(builder.Matrix("gate_up" + std::to_string(e), 10, 7));
    moe.down.push_back(builder.Matrix("down" + std::to_string(e), 7, 5));
  }
  moe.routing.scores = RouterScores::kSigmoid;
  moe.routing.choice_bias = builder.Vector("choice_bias", {0.1f, 0.0f, -0.2f, 0.6f, 0.05f, -0.3f});
  moe.routing.groups = 3;
  moe.routing.top_groups = 2;
  moe.routing.normalize_eps = 0.5f;
  moe.routing.scale = 2.5f;
  test::AddBlock(builder, 0, {moe});
  Runner runner(builder);
  Rows expected;
  for (const auto& row : runner.Until("embed", {2, 9, 4})) {
    auto scores = runner.Apply(moe.router, runner.Norm(builder.plan.blocks[0].pre_norm, row));
    std::vector<double> choice;
    for (size_t e = 0; e < 6; ++e) {
      scores[e] = Sigmoid(scores[e]);
      choice.push_back(scores[e] + runner.V(moe.routing.choice_bias)[e]);
    }
    // Groups are pairs: the worst pair drops out.
    size_t worst = 0;
    for (size_t g = 1; g < 3; ++g) {
      if (choice[2 * g] + choice[2 * g + 1] < choice[2 * worst] + choice[2 * worst + 1]) worst = g;
    }
    choice[2 * worst] = choice[2 * worst + 1] = 0;
    const auto best = [&] {
      return static_cast<size_t>(std::max_element(choice.begin(), choice.end()) - choice.begin());
    };
    const size_t first = best();
    choice[first] = -1;
    const size_t second = best();
    const double sum = scores[first] + scores[second] + 0.5;
    expected.push_back(
        {2.5 * scores[first] / sum, 2.5 * scores[second] / sum, double(first), double(second)});
  }
  ExpectNear(runner.Until("layers.0.moe.router", {2, 9, 4}), expected);
}

TEST(Interpreter, RouterOrdersByFallingWeight) {
  Runner runner(test::TwoLayerPlan());
  const Block& block = runner.plan.blocks[1];
  const auto& moe = std::get<MoeMlp>(block.mixers[0]);
  const Rows x = runner.Until("layers.0.mamba2.out_proj", kTokens);
  const Rows found = runner.Until("layers.0.moe.router", kTokens);
  Rows expected;
  for (const auto& row : x) {
    const auto scores = runner.Apply(moe.router, runner.Norm(block.pre_norm, row));
    std::vector<size_t> order{0, 1, 2, 3, 4};
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    double total = 0;
    for (size_t j = 0; j < 3; ++j) total += std::exp(scores[order[j]]);
    expected.emplace_back();
    for (size_t j = 0; j < 3; ++j) expected.back().push_back(std::exp(scores[order[j]]) / total);
    for (size_t j = 0; j < 3; ++j) expected.back().push_back(double(order[j]));
  }
  ExpectNear(found, expected);
}

TEST(Interpreter, RouterTiesGoToTheLowerIndex) {
  PlanBuilder builder = test::StartPlan(13, 7);
  MoeMlp moe = test::TestMoe(builder, "e0", 7);
  // Experts 1 and 3 score alike and win, 0 and 2 score alike and lose, 4 is last.
  builder.Fill(moe.router.weight, 0.0f);
  moe.router.bias = builder.Vector("ties", {0.5f, 2.0f, 0.5f, 2.0f, -1.0f});
  test::AddBlock(builder, 0, {moe});
  Runner runner(builder);
  const double strong = std::exp(2.0) / (2 * std::exp(2.0) + std::exp(0.5));
  const double weak = std::exp(0.5) / (2 * std::exp(2.0) + std::exp(0.5));
  ExpectNear(runner.Until("layers.0.moe.router", {4}), {{strong, strong, weak, 1, 3, 0}});
}

TEST(Interpreter, ExpertsAndASharedMlpReadTheSameInput) {
  Runner runner(test::TwoLayerPlan());
  const Block& block = runner.plan.blocks[1];
  const auto& moe = std::get<MoeMlp>(block.mixers[0]);
  const auto& mlp = std::get<DenseMlp>(block.mixers[1]);
  const auto gated = [](const std::vector<double>& y) {
    std::vector<double> out;
    const size_t half = y.size() / 2;
    for (size_t i = 0; i < half; ++i) out.push_back(y[i] * Sigmoid(y[i]) * y[half + i]);
    return out;
  };
  Rows expected = runner.Until("layers.0.mamba2.out_proj", kTokens);
  const Rows routing = runner.Until("layers.0.moe.router", kTokens);
  Rows activated;
  for (size_t t = 0; t < kTokens.size(); ++t) {
    const auto x = runner.Norm(block.pre_norm, expected[t]);
    auto sum = runner.Apply(mlp.down, gated(runner.Apply(mlp.gate_up, x)));
    activated.emplace_back();
    for (size_t j = 0; j < 3; ++j) {
      const auto e = static_cast<size_t>(routing[t][3 + j]);
      const auto middle = gated(runner.Apply({moe.gate_up[e], kNoId}, x));
      activated.back().insert(activated.back().end(), middle.begin(), middle.end());
      const auto y = runner.Apply({moe.down[e], kNoId}, middle);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += routing[t][j] * y[i];
    }
    for (size_t i = 0; i < sum.size(); ++i) expected[t][i] += double{0.6f} * sum[i];
  }
  ExpectNear(runner.Until("layers.0.moe.gate_up", kTokens), activated);
  ExpectNear(runner.Until("layers.0.mlp.down", kTokens), expected);
}

TEST(Interpreter, HeadComputesTheRowsAskedFor) {
  Runner runner(test::TwoLayerPlan());
  Rows expected;
  for (const auto& x : runner.Until("layers.1.mlp.down", kTokens)) {
    expected.push_back(runner.Apply(runner.plan.head, runner.Norm(runner.plan.final_norm, x)));
    for (double& y : expected.back()) y *= 0.25;
  }
  Executor& executor = *runner.executor;
  const SequenceId all = executor.CreateSequence();
  const SequenceId none = executor.CreateSequence();
  const SequenceId last = executor.CreateSequence();
  const std::vector<int32_t> other{1, 2};
  executor.Forward({{all, kTokens, LogitsRows::kAll},
                    {none, other, LogitsRows::kNone},
                    {last, kTokens, LogitsRows::kLast}});
  ASSERT_EQ(executor.LogitsCount(), 8);
  Rows found;
  for (int64_t row = 0; row < 8; ++row) {
    found.emplace_back(executor.Logits(row).begin(), executor.Logits(row).end());
  }
  expected.push_back(expected.back());
  ExpectNear(found, expected);
  EXPECT_EQ(executor.Position(none), 2);
  EXPECT_THROW(executor.Logits(8), Error);
  EXPECT_THROW(executor.Logits(-1), Error);
}

TEST(Interpreter, BatchesAndChunksChangeNothing) {
  Runner runner(test::TwoLayerPlan());
  Executor& executor = *runner.executor;
  const std::vector<int32_t> second{9, 1, 1, 4};
  const auto alone = [&](const std::vector<int32_t>& tokens) {
    const SequenceId id = executor.CreateSequence();
    executor.Forward({{id, tokens, LogitsRows::kLast}});
    return std::vector<float>(executor.Logits(0).begin(), executor.Logits(0).end());
  };
  const auto expected_first = alone(kTokens);
  const auto expected_second = alone(second);
  const SequenceId a = executor.CreateSequence();
  const SequenceId b = executor.CreateSequence();
  const std::span<const int32_t> tokens(kTokens);
  executor.Forward({{a, tokens.first(2), LogitsRows::kNone}});
  executor.Forward({{b, std::span(second).first(3), LogitsRows::kNone},
                    {a, tokens.subspan(2, 4), LogitsRows::kNone}});
  executor.Forward(
      {{a, tokens.last(1), LogitsRows::kLast}, {b, std::span(second).last(1), LogitsRows::kLast}});
  EXPECT_TRUE(std::ranges::equal(executor.Logits(0), expected_first));
  EXPECT_TRUE(std::ranges::equal(executor.Logits(1), expected_second));
}

TEST(Interpreter, BadBatchesChangeNothing) {
  Runner runner(test::TwoLayerPlan());
  Executor& executor = *runner.executor;
  const SequenceId a = executor.CreateSequence();
  const SequenceId b = executor.CreateSequence();
  executor.Forward({{a, kTokens, LogitsRows::kLast}});
  const auto before = executor.ExportSequence(a);
  const std::vector<int32_t> good{1, 2};
  const std::vector<int32_t> too_large{1, 13};
  const std::vector<int32_t> negative{-1};
  const std::vector<int32_t> empty;
  try {
    executor.Forward({{a, good, LogitsRows::kLast}, {b, too_large, LogitsRows::kLast}});
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "Token id 13 is outside the vocabulary of 13 tokens.");
  }
  EXPECT_THROW(executor.Forward({{a, negative, LogitsRows::kLast}}), Error);
  EXPECT_THROW(executor.Forward({{a, empty, LogitsRows::kLast}}), Error);
  EXPECT_THROW(executor.Forward({{a, good, LogitsRows::kLast}, {a, good, LogitsRows::kLast}}),
               Error);
  EXPECT_THROW(executor.Forward({{99, good, LogitsRows::kLast}}), Error);
  EXPECT_THROW(executor.ForwardUntil({{a, good, LogitsRows::kLast}}, 15), Error);
  EXPECT_EQ(executor.ExportSequence(a), before);
  EXPECT_EQ(executor.Position(b), 0);
}

}  // namespace
}  // namespace adder
