// Side streams, rules of residuals, options of attention and routers, and repeated vectors in
// plans and states.
#include <gtest/gtest.h>

#include <cmath>

#include "model/plan.h"
#include "model/refused_plan_for_test.h"
#include "model/state_layout.h"

namespace adder {
namespace {

// Hidden 6, vocab 10. Blocks: attention over x | embedding to the side; an MLP that reads
// x + side; attention that shares the keys of the fourth; experts with a router MLP.
Plan SmallPlan() {
  Plan plan;
  plan.family = "test";
  plan.vocab = 10;
  plan.hidden = 6;
  plan.embedding = plan.AddMatrix("embed", "embed", 10, 6);
  plan.head.weight = plan.embedding;
  plan.final_norm.weight = plan.AddVector("norm", "norm.weight", 6);
  const auto norm = [&plan](int64_t size) {
    return RmsNorm{plan.AddVector("pre", "pre.weight", size), 1e-6f, 1};
  };
  const auto linear = [&plan](const char* name, int64_t rows, int64_t cols) {
    Linear result;
    result.weight = plan.AddMatrix(name, name, rows, cols);
    return result;
  };
  Attention a;
  a.heads = 4;
  a.kv_heads = 2;
  a.head_dim = 3;
  a.scale = 1;
  Attention joined = a;
  joined.qkv = linear("qkv", 24, 12);
  joined.qkv_adapter = Adapter{2, linear("low", 6, 12), {}};
  for (const char* part : {"b0", "b1", "b2"}) {
    joined.qkv_adapter->b.push_back(plan.AddMatrix(part, part, 8, 2));
  }
  joined.output = linear("out", 6, 12);
  Block side{0, norm(12), {joined}, 1, std::nullopt};
  side.input = BlockInput::kResidualAndEmbedding;
  side.to_side = true;
  plan.blocks.push_back(side);

  DenseMlp mlp;
  mlp.intermediate = 5;
  mlp.gate_up = linear("gate_up", 10, 6);
  mlp.down = linear("down", 6, 5);
  Block reader{0, norm(6), {mlp}, 1, norm(6)};
  reader.input = BlockInput::kResidualPlusSide;
  reader.side_projection = linear("projection", 6, 6);
  reader.branch_norms = {{std::nullopt, norm(6)}};
  reader.rule.total = plan.AddVector("total", "total", 1);
  plan.blocks.push_back(reader);

  Attention owner = a;
  owner.qkv = linear("qkv2", 24, 6);
  owner.output = linear("out2", 6, 12);
  owner.window = 4;
  HeadMixing mixing{3, 2};
  mixing.conv_weight =
      plan.AddVector(VectorRef{"conv", {{"conv", {{18, 1, 3}}}}, VectorTransform::kConvTimeMajor});
  mixing.conv_bias = plan.AddVector("conv bias", "conv.bias", 18);
  mixing.group_weight = plan.AddVector(
      VectorRef{"group", {{"group", {{18, 3, 2}}}}, VectorTransform::kGroupedConvTimeMajor});
  mixing.group_bias = plan.AddVector("group bias", "group.bias", 18);
  owner.mixing = mixing;
  VectorRef temperature{"temp", {{"temp", {{2}}}}};
  temperature.repeat = 3;
  owner.k_norm = RmsNorm{plan.AddVector(temperature), 0, 2};
  plan.blocks.push_back(Block{1, norm(6), {owner}, 1, std::nullopt});

  Attention guest = a;
  guest.qkv = linear("q", 12, 6);
  guest.output = linear("out3", 6, 12);
  guest.q_norm = RmsNorm{kNoId, 1e-6f, 1};
  guest.shared_kv_block = 2;
  plan.blocks.push_back(Block{2, norm(6), {guest}, 1, std::nullopt});

  MoeMlp moe;
  moe.experts = 2;
  moe.top_k = 1;
  moe.intermediate = 4;
  moe.routing.idle = 1;
  moe.routing.choice_bias = plan.AddVector("bias", "bias", 3);
  moe.router = linear("router", 3, 7);
  RouterMlp router{7, Activation::kGelu, linear("r_down", 7, 6), kNoId, norm(7), {}, {}};
  router.fc1 = linear("fc1", 7, 7);
  router.fc2 = linear("fc2", 7, 7);
  moe.router_mlp = router;
  for (const char* name : {"e0", "e1"}) {
    moe.gate_up.push_back(plan.AddMatrix(name, std::string(name) + ".up", 8, 6));
    moe.down.push_back(plan.AddMatrix(name, std::string(name) + ".down", 6, 4));
  }
  plan.blocks.push_back(Block{2, norm(6), {moe}, 1, std::nullopt});
  return plan;
}

template <class M>
M& MixerOf(Plan& plan, size_t block) {
  return std::get<M>(plan.blocks[block].mixers[0]);
}

template <class Change>
void ExpectInvalid(Change change, const std::string& words) {
  Plan plan = SmallPlan();
  change(plan);
  test::ExpectRefused(plan, words);
}

TEST(ResidualRulesPlan, SideStreamsAreValidated) {
  EXPECT_NO_THROW(ValidatePlan(SmallPlan()));
  ExpectInvalid([](Plan& plan) { plan.blocks[0].to_side = false; }, "no block before it goes");
  ExpectInvalid([](Plan& plan) { plan.blocks[0].residual_scale = 2; }, "nothing that changes");
  ExpectInvalid([](Plan& plan) { plan.blocks[1].input = BlockInput::kResidualAndEmbedding; },
                "DenseMlp cannot read");
  ExpectInvalid([](Plan& plan) { plan.blocks[1].side_projection.weight = 0; }, "side_projection");
  ExpectInvalid([](Plan& plan) { MixerOf<Attention>(plan, 0).qkv_adapter->b.pop_back(); },
                "qkv_adapter a");
  ExpectInvalid([](Plan& plan) { MixerOf<Attention>(plan, 0).qkv_adapter->rank = 0; },
                "qkv_adapter rank is 0");
}

TEST(ResidualRulesPlan, RulesAreValidated) {
  ExpectInvalid([](Plan& plan) { plan.blocks[1].branch_norms.emplace_back(); }, "branch_norms");
  ExpectInvalid([](Plan& plan) { plan.blocks[1].rule.normed = true; }, "reads more than x");
  ExpectInvalid([](Plan& plan) { plan.blocks[1].rule.keep_bias = 99; }, "keep_bias has the vector");
  ExpectInvalid([](Plan& plan) { plan.blocks[1].rule.keep = NAN; }, "keep is nan");
  ExpectInvalid([](Plan& plan) { plan.logits_cap = -1; }, "logits_cap is -1");
  ExpectInvalid([](Plan& plan) { MixerOf<DenseMlp>(plan, 1).layer_input = 0; },
                "layer_input needs layer_inputs");
}

TEST(ResidualRulesPlan, OptionsOfAttentionAreValidated) {
  ExpectInvalid([](Plan& plan) { MixerOf<Attention>(plan, 3).shared_kv_block = 3; },
                "shared_kv_block is 3");
  ExpectInvalid([](Plan& plan) { MixerOf<Attention>(plan, 3).shared_kv_block = 1; },
                "no block of one Attention");
  ExpectInvalid(
      [](Plan& plan) {
        MixerOf<Attention>(plan, 3).v_norm = RmsNorm{kNoId, 0, 1};
      },
      "no keys of its own");
  ExpectInvalid([](Plan& plan) { MixerOf<Attention>(plan, 2).window = -1; }, "window is -1");
  ExpectInvalid([](Plan& plan) { MixerOf<Attention>(plan, 2).values_from_keys = true; }, "mixing");
  ExpectInvalid([](Plan& plan) { MixerOf<Attention>(plan, 2).output_gate = true; },
                "an output_gate beside mixing is not implemented");
  ExpectInvalid([](Plan& plan) { MixerOf<Attention>(plan, 2).mixing->taps = 2; },
                "conv_weight is \"conv\"");
  ExpectInvalid([](Plan& plan) { MixerOf<Attention>(plan, 2).mixing->group_taps = 0; },
                "group_taps is 0");
}

TEST(ResidualRulesPlan, RoutersAreValidated) {
  ExpectInvalid([](Plan& plan) { MixerOf<MoeMlp>(plan, 4).routing.idle = 0; }, "router is");
  ExpectInvalid([](Plan& plan) { MixerOf<MoeMlp>(plan, 4).router_mlp->width = 6; }, "router is");
  ExpectInvalid(
      [](Plan& plan) {
        MixerOf<MoeMlp>(plan, 4).router_mlp->carried_scale = plan.AddVector("c", "c", 7);
      },
      "that of the router before");
  ExpectInvalid([](Plan& plan) { MixerOf<MoeMlp>(plan, 4).routing.expert_scale = 0; },
                "expert_scale");
}

TEST(ResidualRulesPlan, RepeatedValuesCountOnce) {
  Plan plan = SmallPlan();
  const VectorId temperature = MixerOf<Attention>(plan, 2).k_norm->weight;
  EXPECT_EQ(VectorSize(plan.vectors[temperature]), 6);
  const int64_t count = ParameterCount(plan);
  plan.vectors[temperature].repeat = 6;
  EXPECT_EQ(ParameterCount(plan), count);
  plan.vectors[temperature].repeat = int64_t{1} << 62;
  EXPECT_EQ(VectorSize(plan.vectors[temperature]), -1);
}

TEST(ResidualRulesPlan, SharedKeysHaveNoState) {
  const StateLayout layout = MakeStateLayout(SmallPlan());
  ASSERT_EQ(layout.kv.size(), 2u);
  EXPECT_EQ(layout.kv[1].block, 2);
  ASSERT_EQ(layout.recurrent.size(), 2u);
  EXPECT_EQ(layout.recurrent[0].shape, (Shape{3, 18}));
  EXPECT_EQ(layout.recurrent[1].shape, (Shape{3}));
}

TEST(ResidualRulesPlan, IsPrinted) {
  const std::string text = PlanString(SmallPlan());
  for (const char* words :
       {"x | embedding -> ", "+adapter(2x3)", " -> side\n", "x + [6x6] side -> ", " total\n",
        "window=4", "mixing=(taps=3 group_taps=2)", "shared_kv_block=2", ",idle=1",
        "router_mlp=(width=7 gelu"}) {
    EXPECT_NE(text.find(words), std::string::npos) << words << " is not in\n" << text;
  }
}

}  // namespace
}  // namespace adder
