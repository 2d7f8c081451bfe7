// Blocks that read or change more than x += mixer(norm(x)): side streams, adapters, norms of
// branches, residual rules, layer inputs. Expectations are computed here from the formulas.
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
using test::Silu;

const std::vector<int32_t> kTokens{3, 11, 0, 7};

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
  std::vector<double> Norm(const RmsNorm& norm, const std::vector<double>& x) const {
    double mean = 0;
    for (const double value : x) mean += value * value / static_cast<double>(x.size());
    std::vector<double> out;
    for (size_t i = 0; i < x.size(); ++i) {
      out.push_back(x[i] / std::sqrt(mean + norm.eps) * V(norm.weight, i));
    }
    return out;
  }
  std::vector<double> Apply(MatrixId id, const std::vector<double>& x) const {
    const WeightMatrix& matrix = weights->matrices[static_cast<size_t>(id)];
    std::vector<double> out(static_cast<size_t>(matrix.rows));
    for (size_t r = 0; r < out.size(); ++r) {
      for (size_t c = 0; c < x.size(); ++c) out[r] += test::WeightAt(*weights, id, r, c) * x[c];
    }
    return out;
  }

  Plan plan;
  std::shared_ptr<const BoundWeights> weights;
  std::unique_ptr<Executor> executor;
};

DenseMlp PlainMlp(PlanBuilder& builder, const std::string& label, int64_t width) {
  DenseMlp mlp;
  mlp.intermediate = width;
  mlp.gated = false;
  mlp.gate_up = builder.Linear(label + ".up", width, 7);
  mlp.down = builder.Linear(label + ".down", 7, width);
  return mlp;
}

// Attention over x | embedding and an MLP with an adapter make the side stream, which the third
// block adds to what its MLP reads.
PlanBuilder SidePlan() {
  PlanBuilder builder = test::StartPlan(13, 7);
  test::AddBlock(builder, 0, {PlainMlp(builder, "before", 5)});
  Attention a;
  a.heads = 2;
  a.kv_heads = 2;
  a.head_dim = 3;
  a.scale = 0.5f;
  a.qkv = builder.Linear("a.qkv", 18, 14);
  a.qkv_adapter = Adapter{2, builder.Linear("a.low", 6, 14), {}};
  for (const char* part : {"a.q", "a.k", "a.v"}) {
    a.qkv_adapter->b.push_back(builder.Matrix(part, 6, 2));
  }
  a.output = builder.Linear("a.out", 7, 6);
  Block join;
  join.layer = 1;
  join.input = BlockInput::kResidualAndEmbedding;
  join.pre_norm = builder.Norm("join", 14);
  join.mixers = {a};
  join.to_side = true;
  builder.plan.blocks.push_back(join);
  DenseMlp mlp = PlainMlp(builder, "side", 6);
  mlp.gate_up_adapter = Adapter{4, builder.Linear("side.low", 4, 7), {}};
  mlp.gate_up_adapter->b.push_back(builder.Matrix("side.high", 6, 4));
  test::AddBlock(builder, 1, {mlp}, 1);
  builder.plan.blocks.back().input = BlockInput::kSide;
  builder.plan.blocks.back().to_side = true;
  test::AddBlock(builder, 1, {PlainMlp(builder, "after", 4)});
  builder.plan.blocks.back().input = BlockInput::kResidualPlusSide;
  builder.plan.blocks.back().side_projection = builder.Linear("side.projection", 7, 7);
  return builder;
}

TEST(SideStream, GoldenOpList) {
  EXPECT_EQ(test::OpList(SidePlan().Lower()),
            "embed -> residual\n"
            "embed_copy -> embedding\n"
            "layers.0.mlp.gate_up -> mlp.gate_up\n"
            "layers.0.mlp.down -> residual\n"
            "layers.1.join -> join\n"
            "layers.1.attention.adapter_a -> attention.adapter_a\n"
            "layers.1.attention.adapter_b -> attention.adapter_b\n"
            "layers.1.attention.qkv -> attention.qkv\n"
            "layers.1.attention.attend -> attention.attend\n"
            "layers.1.attention.o_proj -> side\n"
            "layers.1.mlp.adapter_a -> mlp.adapter_a\n"
            "layers.1.mlp.adapter_b -> mlp.adapter_b\n"
            "layers.1.mlp.gate_up -> mlp.gate_up_2\n"
            "layers.1.mlp.down -> side\n"
            "layers.1.side.copy -> side.sum\n"
            "layers.1.side.projection -> side.sum\n"
            "layers.1.mlp_2.gate_up -> mlp.gate_up_3\n"
            "layers.1.mlp_2.down -> residual\n"
            "head -> logits\n");
}

TEST(SideStream, AttentionReadsTheResidualBesideTheEmbedding) {
  Runner runner(SidePlan());
  const auto& a = std::get<Attention>(runner.plan.blocks[1].mixers[0]);
  const Rows x = runner.Until("layers.0.mlp.down");
  const Rows e = runner.Until("embed");
  Rows expected;
  for (size_t t = 0; t < x.size(); ++t) {
    std::vector<double> joined = x[t];
    joined.insert(joined.end(), e[t].begin(), e[t].end());
    joined = runner.Norm(runner.plan.blocks[1].pre_norm, joined);
    expected.push_back(runner.Apply(a.qkv.weight, joined));
    const std::vector<double> low = runner.Apply(a.qkv_adapter->a.weight, joined);
    for (size_t part = 0; part < 3; ++part) {
      const std::vector<double> high =
          runner.Apply(a.qkv_adapter->b[part], {low[2 * part], low[2 * part + 1]});
      for (size_t r = 0; r < 6; ++r) expected[t][6 * part + r] += high[r];
    }
  }
  ExpectNear(runner.Until("layers.1.attention.qkv"), expected);
}

TEST(SideStream, IsAddedToWhatIsReadButNotToTheResidual) {
  Runner runner(SidePlan());
  const Block& block = runner.plan.blocks[3];
  const auto& mlp = std::get<DenseMlp>(block.mixers[0]);
  const auto& side_mlp = std::get<DenseMlp>(runner.plan.blocks[2].mixers[0]);
  const Rows x = runner.Until("layers.0.mlp.down");
  const Rows attended = runner.Until("layers.1.attention.o_proj");
  Rows expected;
  for (size_t t = 0; t < x.size(); ++t) {
    const std::vector<double> normed = runner.Norm(runner.plan.blocks[2].pre_norm, attended[t]);
    std::vector<double> hidden = runner.Apply(side_mlp.gate_up.weight, normed);
    const std::vector<double> high = runner.Apply(
        side_mlp.gate_up_adapter->b[0], runner.Apply(side_mlp.gate_up_adapter->a.weight, normed));
    for (size_t i = 0; i < hidden.size(); ++i) hidden[i] = Silu(hidden[i] + high[i]);
    const std::vector<double> side = runner.Apply(side_mlp.down.weight, hidden);
    std::vector<double> read = runner.Apply(block.side_projection.weight, side);
    for (size_t i = 0; i < 7; ++i) read[i] += x[t][i];
    hidden = runner.Apply(mlp.gate_up.weight, runner.Norm(block.pre_norm, read));
    for (double& value : hidden) value = Silu(value);
    expected.push_back(runner.Apply(mlp.down.weight, hidden));
    for (size_t i = 0; i < 7; ++i) expected[t][i] = x[t][i] + double{0.6f} * expected[t][i];
  }
  ExpectNear(runner.Until("layers.1.mlp_2.down"), expected);
}

// Two MLPs, the second with norms of its own, then a norm of their sum.
PlanBuilder BranchPlan() {
  PlanBuilder builder = test::StartPlan(13, 7);
  test::AddBlock(builder, 0, {PlainMlp(builder, "first", 5), test::TestMoe(builder, "e", 7)});
  Block& block = builder.plan.blocks.back();
  block.branch_norms = {{std::nullopt, builder.Norm("post_1", 7)},
                        {builder.Norm("pre_2", 7), std::nullopt}};
  auto& moe = std::get<MoeMlp>(block.mixers[1]);
  moe.router_norm = builder.Norm("router_norm", 7);
  moe.routing.expert_scale = builder.Vector("expert_scale", {0.5f, 2.0f, 1.5f, 0.25f, 3.0f});
  block.post_norm = builder.Norm("post", 7);
  block.rule.total = builder.Vector("total", {0.8f});
  return builder;
}

TEST(BranchNorms, SumOfNormedBranchesIsNormedAgain) {
  Runner runner(BranchPlan());
  const Block& block = runner.plan.blocks[0];
  const auto& mlp = std::get<DenseMlp>(block.mixers[0]);
  const auto& moe = std::get<MoeMlp>(block.mixers[1]);
  const Rows x = runner.Until("embed");
  const Rows routed = runner.Until("layers.0.moe.router");
  Rows expected;
  Rows weights;
  for (size_t t = 0; t < x.size(); ++t) {
    std::vector<double> hidden =
        runner.Apply(mlp.gate_up.weight, runner.Norm(block.pre_norm, x[t]));
    for (double& value : hidden) value = Silu(value);
    std::vector<double> sum =
        runner.Norm(*block.branch_norms[0].post, runner.Apply(mlp.down.weight, hidden));
    // The router reads through its own norm; the weights of the chosen are scaled at last.
    const std::vector<double> logits =
        runner.Apply(moe.router.weight, runner.Norm(*moe.router_norm, x[t]));
    double total = 0;
    for (size_t j = 0; j < 3; ++j) total += std::exp(logits[size_t(routed[t][3 + j])]);
    weights.emplace_back();
    for (size_t j = 0; j < 3; ++j) {
      const auto expert = static_cast<size_t>(routed[t][3 + j]);
      weights[t].push_back(std::exp(logits[expert]) / total *
                           runner.V(moe.routing.expert_scale, expert));
      EXPECT_NEAR(routed[t][j], weights[t][j], 1e-5);
      const std::vector<double> y =
          runner.Apply(moe.gate_up[expert], runner.Norm(*block.branch_norms[1].pre, x[t]));
      std::vector<double> activated;
      for (size_t i = 0; i < 6; ++i) activated.push_back(Silu(y[i]) * y[6 + i]);
      const std::vector<double> down = runner.Apply(moe.down[expert], activated);
      for (size_t i = 0; i < 7; ++i) sum[i] += weights[t][j] * down[i];
    }
    const std::vector<double> normed = runner.Norm(*block.post_norm, sum);
    expected.emplace_back();
    for (size_t i = 0; i < 7; ++i) {
      expected[t].push_back(double{0.8f} * (x[t][i] + double{0.6f} * normed[i]));
    }
  }
  ExpectNear(runner.Until("layers.0.residual.update"), expected);
  EXPECT_EQ(test::OpList(BranchPlan().Lower()),
            "embed -> residual\n"
            "layers.0.mlp.gate_up -> mlp.gate_up\n"
            "layers.0.moe.router -> moe.router\n"
            "layers.0.moe.gate_up -> moe.gate_up\n"
            "layers.0.mlp.down -> residual.branch\n"
            "layers.0.mlp.post_norm -> residual.sum\n"
            "layers.0.moe.down -> residual.sum\n"
            "layers.0.residual.update -> residual\n"
            "head -> logits\n");
}

TEST(ResidualRule, NormedWeighedAndScaledByChannel) {
  PlanBuilder builder = test::StartPlan(13, 7);
  builder.plan.embedding_bias = builder.Vector("eb", NamedRandom("eb").Values(7, 0.5f));
  builder.plan.embedding_factor = builder.Vector("ef", NamedRandom("ef").Values(7, 0.5f, 1.0f));
  test::AddBlock(builder, 0, {PlainMlp(builder, "m", 5)});
  ResidualRule& rule = builder.plan.blocks[0].rule;
  rule.normed = true;
  rule.keep = 1.3f;
  rule.keep_bias = builder.Vector("kb", NamedRandom("kb").Values(7, 0.5f));
  rule.keep_scale = builder.Vector("ks", NamedRandom("ks").Values(7, 0.5f, 1.0f));
  rule.add_bias = builder.Vector("ab", NamedRandom("ab").Values(7, 0.5f));
  rule.add_scale = builder.Vector("as", NamedRandom("as").Values(7, 0.5f, 1.0f));
  Runner runner(builder);
  const Rows embedded = runner.Until("embed");
  Rows scaled;
  Rows expected;
  const auto& mlp = std::get<DenseMlp>(runner.plan.blocks[0].mixers[0]);
  for (const std::vector<double>& e : embedded) {
    scaled.emplace_back();
    for (size_t i = 0; i < 7; ++i) {
      scaled.back().push_back((e[i] + runner.V(runner.plan.embedding_bias, i)) *
                              runner.V(runner.plan.embedding_factor, i));
    }
    const std::vector<double> x = runner.Norm(runner.plan.blocks[0].pre_norm, scaled.back());
    std::vector<double> hidden = runner.Apply(mlp.gate_up.weight, x);
    for (double& value : hidden) value = Silu(value);
    const std::vector<double> y = runner.Apply(mlp.down.weight, hidden);
    expected.emplace_back();
    for (size_t i = 0; i < 7; ++i) {
      expected.back().push_back(
          double{1.3f} * (x[i] + runner.V(rule.keep_bias, i)) * runner.V(rule.keep_scale, i) +
          double{0.6f} * (y[i] + runner.V(rule.add_bias, i)) * runner.V(rule.add_scale, i));
    }
  }
  ExpectNear(runner.Until("embed_scale"), scaled);
  ExpectNear(runner.Until("layers.0.residual.update"), expected);
}

TEST(LayerInputs, PartsOfATokenMultiplyWhatTheMlpActivates) {
  PlanBuilder builder = test::StartPlan(13, 7);
  LayerInputs inputs;
  inputs.parts = 2;
  inputs.width = 3;
  inputs.embedding = builder.Matrix("inputs.embedding", 13, 6);
  inputs.embedding_scale = 1.7f;
  inputs.projection = builder.Linear("inputs.projection", 6, 7);
  inputs.projection.input_scale = 0.4f;
  inputs.norm = builder.Norm("inputs.norm", 3);
  inputs.scale = 0.7f;
  builder.plan.layer_inputs = inputs;
  DenseMlp mlp = PlainMlp(builder, "m", 3);
  mlp.activation = Activation::kGeluTanh;
  mlp.layer_input = 1;
  test::AddBlock(builder, 0, {mlp});
  builder.plan.blocks[0].skip_pre_norm = true;
  // The norm that skip_pre_norm leaves out is no part of the plan.
  const VectorId unused = builder.plan.blocks[0].pre_norm.weight;
  builder.plan.blocks[0].post_norm = RmsNorm{unused, 1e-3f, 1};
  Runner runner(builder);
  const Rows x = runner.Until("embed");
  Rows sums;
  Rows expected;
  for (size_t t = 0; t < x.size(); ++t) {
    std::vector<double> projected = runner.Apply(inputs.projection.weight, x[t]);
    for (double& value : projected) value *= double{0.4f};
    sums.emplace_back();
    for (size_t part = 0; part < 2; ++part) {
      const std::vector<double> normed = runner.Norm(
          inputs.norm, {projected[3 * part], projected[3 * part + 1], projected[3 * part + 2]});
      for (size_t i = 0; i < 3; ++i) {
        const double token = test::WeightAt(*runner.weights, inputs.embedding,
                                            static_cast<size_t>(kTokens[t]), 3 * part + i);
        sums[t].push_back(double{0.7f} * (normed[i] + double{1.7f} * token));
      }
    }
    const std::vector<double> up = runner.Apply(mlp.gate_up.weight, x[t]);
    expected.emplace_back();
    for (size_t i = 0; i < 3; ++i) {
      const double u = up[i];
      const double gelu =
          0.5 * u * (1 + std::tanh(0.7978845608028654 * (u + 0.044715 * u * u * u)));
      expected[t].push_back(gelu * sums[t][3 + i]);
    }
  }
  ExpectNear(runner.Until("layer_inputs.sum"), sums);
  ExpectNear(runner.Until("layers.0.mlp.gate_up"), expected);
}

TEST(LogitsCap, BendsLargeLogits) {
  PlanBuilder builder = test::StartPlan(13, 7);
  test::AddBlock(builder, 0, {PlainMlp(builder, "m", 5)});
  Runner plain(builder);
  builder.plan.logits_cap = 0.3f;
  Runner capped(builder);
  Rows expected = plain.Until("head");
  for (auto& row : expected) {
    for (double& logit : row) logit = double{0.3f} * std::tanh(logit / double{0.3f});
  }
  ExpectNear(capped.Until("head"), expected);
}

TEST(ResidualRule, MistakesAreFound) {
  const auto expect_bad = [](const PlanBuilder& builder, const std::string& name, auto change,
                             const std::string& words) {
    Program program = builder.Lower();
    change(program.ops[static_cast<size_t>(program.FindOp(name))].body);
    try {
      VerifyProgram(program);
      ADD_FAILURE() << "accepted; expected a message with " << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  const PlanBuilder branches = BranchPlan();
  expect_bad(
      branches, "layers.0.residual.update",
      [](OpBody& op) { std::get<UpdateOp>(op).input = std::get<UpdateOp>(op).output; },
      "it adds to the buffer it reads");
  expect_bad(
      branches, "layers.0.residual.update", [](OpBody& op) { std::get<UpdateOp>(op).total = 0; },
      "total has 7 elements");
  const PlanBuilder side = SidePlan();
  expect_bad(
      side, "layers.1.join", [](OpBody& op) { std::get<JoinOp>(op).inputs.pop_back(); },
      "it writes 7 wide rows");
  expect_bad(
      side, "layers.1.mlp.gate_up", [](OpBody& op) { std::get<LinearOp>(op).addend = 0; },
      "wide rows from buffer");
}

}  // namespace
}  // namespace adder
