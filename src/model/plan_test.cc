#include "model/plan.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "model/refused_plan_for_test.h"

namespace adder {
namespace {

// One block of each mixer, every size different: hidden 6, vocab 10.
Plan SmallPlan() {
  Plan plan;
  plan.family = "test";
  plan.vocab = 10;
  plan.hidden = 6;
  plan.embedding = plan.AddMatrix("embed", "embed", 10, 6);
  plan.head.weight = plan.embedding;
  plan.final_norm.weight = plan.AddVector("norm", "norm.weight", 6);

  Attention attention;
  attention.heads = 4;
  attention.kv_heads = 2;
  attention.head_dim = 4;
  attention.scale = 0.5f;
  attention.rope = Rope{2, 10000.0, "default", {1.0f}};
  MatrixRef qkv{"qkv", 32, 6, {}};
  qkv.parts.push_back({"q", 16, 0, 16});
  qkv.parts.push_back({"kv", 16, 0, 8});
  qkv.parts.push_back({"kv", 16, 8, 8});
  attention.qkv.weight = plan.AddMatrix(qkv);
  attention.qkv.bias =
      plan.AddVector(VectorRef{"qkv bias", {{"q.bias", {{16}}}, {"kv.bias", {{16}}}}});
  attention.output.weight = plan.AddMatrix("o", "o", 6, 16);

  Mamba2 mamba;
  mamba.heads = 6;
  mamba.head_dim = 3;
  mamba.d_state = 5;
  mamba.groups = 2;
  mamba.d_conv = 4;
  mamba.in_proj.weight = plan.AddMatrix("in", "in", 18 + 38 + 6, 6);
  mamba.conv_weight = plan.AddVector(VectorRef{
      "conv", {{"conv.weight", {{38, 1, 4}, {38, 4, 1}}}}, VectorTransform::kConvTimeMajor});
  mamba.dt_bias = plan.AddVector("dt_bias", "dt_bias", 6);
  mamba.a = plan.AddVector("a", "A_log", 6, VectorTransform::kNegativeExp);
  mamba.d = plan.AddVector("d", "D", 6);
  mamba.gated_norm = RmsNorm{plan.AddVector("gated", "gated.weight", 18), 1e-5f, 2};
  mamba.out_proj.weight = plan.AddMatrix("out", "out", 6, 18);

  DenseMlp mlp;
  mlp.intermediate = 7;
  mlp.gate_up.weight = plan.AddMatrix("gate_up", "gate_up", 14, 6);
  mlp.down.weight = plan.AddMatrix("down", "down", 6, 7);
  MoeMlp moe;
  moe.experts = 3;
  moe.top_k = 2;
  moe.intermediate = 9;
  moe.router.weight = plan.AddMatrix("router", "router", 3, 6);
  for (int64_t i = 0; i < 3; ++i) {
    moe.gate_up.push_back(plan.AddMatrix(MatrixRef{"eg", 18, 6, {{"eg", 18, 0, 18, 3, i}}}));
    moe.down.push_back(plan.AddMatrix(MatrixRef{"ed", 6, 9, {{"ed", 6, 0, 6, 3, i}}}));
  }
  const auto block = [&plan](int64_t layer, std::vector<Mixer> mixers) {
    const VectorId norm = plan.AddVector("pre", "pre.weight", 6);
    plan.blocks.push_back(Block{layer, RmsNorm{norm, 1e-6f, 1}, std::move(mixers), 0.25f, {}});
  };
  block(0, {attention});
  block(0, {mamba});
  block(1, {mlp, moe});
  return plan;
}

Attention& AttentionOf(Plan& plan) { return std::get<Attention>(plan.blocks[0].mixers[0]); }
Mamba2& MambaOf(Plan& plan) { return std::get<Mamba2>(plan.blocks[1].mixers[0]); }
MoeMlp& MoeOf(Plan& plan) { return std::get<MoeMlp>(plan.blocks[2].mixers[1]); }

// Expects that the plan changed by `change` is refused with a message holding all of `words`.
template <class Change>
void ExpectInvalid(Change change, std::vector<std::string> words) {
  Plan plan = SmallPlan();
  change(plan);
  for (const std::string& word : words) test::ExpectRefused(plan, word);
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(Plan, ValidPlanPasses) { EXPECT_NO_THROW(ValidatePlan(SmallPlan())); }

TEST(Plan, AddMatrixGivesIdsInOrder) {
  Plan plan;
  EXPECT_EQ(plan.AddMatrix("a", "m.a", 3, 4), 0);
  EXPECT_EQ(plan.AddMatrix("b", "m.b", 5, 6), 1);
  EXPECT_EQ(plan.AddVector("c", "m.c", 7), 0);
  EXPECT_EQ(plan.AddVector("d", "m.d", 8, VectorTransform::kPlusOne), 1);
  ASSERT_EQ(plan.matrices[1].parts.size(), 1u);
  EXPECT_EQ(plan.matrices[1].parts[0].module, "m.b");
  EXPECT_EQ(plan.matrices[1].parts[0].row_count, 5);
  EXPECT_EQ(plan.matrices[1].cols, 6);
  EXPECT_EQ(plan.vectors[1].parts[0].tensor, "m.d");
  EXPECT_EQ(plan.vectors[1].transform, VectorTransform::kPlusOne);
}

TEST(Plan, VectorSizeAddsParts) {
  EXPECT_EQ(VectorSize({"v", {{"a", {{3}}}, {"b", {{2, 5}, {5, 2}}}}}), 13);
  EXPECT_EQ(VectorSize({"v", {}}), -1);
  EXPECT_EQ(VectorSize({"v", {{"a", {}}}}), -1);
  EXPECT_EQ(VectorSize({"v", {{"a", {{3}, {4}}}}}), -1);
  EXPECT_EQ(VectorSize({"v", {{"a", {{int64_t{1} << 40, int64_t{1} << 40}}}}}), -1);
}

TEST(Plan, CountsParametersWithTiedHeadOnce) {
  // embed 60, norm 6; attention 192 + 32 + 96 + norm 6; mamba 372 + 152 + 18 + 18 + 108 + norm 6;
  // mlp 84 + 42; moe 18 + 3 * (108 + 54) + norm 6.
  EXPECT_EQ(ParameterCount(SmallPlan()), 66 + 326 + 674 + 126 + 510);
}

TEST(Plan, AbsurdSizesAreNamed) {
  ExpectInvalid([](Plan& plan) { plan.vocab = 0; }, {"vocab is 0"});
  ExpectInvalid([](Plan& plan) { plan.hidden = -6; }, {"hidden is -6"});
  ExpectInvalid([](Plan& plan) { plan.hidden = int64_t{1} << 60; }, {"hidden is"});
  ExpectInvalid([](Plan& plan) { plan.max_positions = -1; }, {"max_positions"});
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).heads = 0; },
                {"block 0 (layer 0), mixer 0 (Attention)", "heads is 0"});
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).kv_heads = 0; }, {"kv_heads is 0"});
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).kv_heads = 3; },
                {"heads (4) is not a multiple of kv_heads (3)"});
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).head_dim = int64_t{1} << 60; },
                {"block 0", "head_dim"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).heads = -6; },
                {"block 1 (layer 0), mixer 0 (Mamba2)", "heads is -6"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).groups = 4; },
                {"heads (6) is not a multiple of groups (4)"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).groups = 0; }, {"groups is 0"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).d_conv = 0; }, {"d_conv is 0"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).d_state = 1 << 24; }, {"block 1", "d_state"});
  ExpectInvalid(
      [](Plan& plan) {
        MambaOf(plan).heads = MambaOf(plan).head_dim = MambaOf(plan).d_state = 1 << 24;
      },
      {"state of heads x d_state x head_dim"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).gated_norm->groups = 4; },
                {"gated_norm (18) is not a multiple of groups (4)"});
  ExpectInvalid([](Plan& plan) { MoeOf(plan).top_k = 4; },
                {"block 2 (layer 1), mixer 1 (MoeMlp)", "top_k is 4"});
  ExpectInvalid([](Plan& plan) { MoeOf(plan).top_k = 0; }, {"top_k is 0"});
  ExpectInvalid([](Plan& plan) { MoeOf(plan).experts = int64_t{1} << 40; }, {"experts is"});
  ExpectInvalid([](Plan& plan) { plan.blocks[2].layer = kMaxLayers; }, {"layer is 4096"});
  ExpectInvalid([](Plan& plan) { plan.blocks.resize(4 * kMaxLayers + 1); }, {"number of blocks"});
  ExpectInvalid([](Plan& plan) { plan.blocks[1].mixers.clear(); }, {"block 1", "no mixers"});
}

TEST(Plan, NonFiniteScalarsAreNamed) {
  ExpectInvalid([](Plan& plan) { plan.embedding_scale = kNan; }, {"embedding_scale is nan"});
  ExpectInvalid([](Plan& plan) { plan.logits_scale = kInfinity; }, {"logits_scale is inf"});
  ExpectInvalid([](Plan& plan) { plan.blocks[1].residual_scale = kNan; },
                {"block 1", "residual_scale"});
  ExpectInvalid([](Plan& plan) { plan.blocks[1].pre_norm.eps = kNan; }, {"pre_norm eps is nan"});
  ExpectInvalid([](Plan& plan) { plan.blocks[1].pre_norm.eps = -1; }, {"pre_norm eps is -1"});
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).scale = kNan; }, {"block 0", "scale is nan"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).dt_min = kNan; }, {"dt_min is nan"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).dt_min = -0.5f; }, {"dt_min is -0.5"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).dt_max = kNan; }, {"dt_max is nan"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).dt_min = 2, MambaOf(plan).dt_max = 1; },
                {"dt_max is 1"});
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).rope->inverse_frequencies[0] = kNan; },
                {"rope inverse_frequencies"});
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).rope->rotary_dim = 4; },
                {"number of rope inverse_frequencies is 1"});
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).rope->rotary_dim = 6; }, {"rotary_dim is 6"});
}

TEST(Plan, WrongWeightsAreNamed) {
  ExpectInvalid([](Plan& plan) { plan.embedding = kNoId; }, {"embedding has the matrix id -1"});
  ExpectInvalid([](Plan& plan) { plan.head.weight = 99; }, {"head has the matrix id 99"});
  ExpectInvalid([](Plan& plan) { plan.head.weight = 2; }, {"head is \"o\" of shape [6, 16]"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).a = kNoId; }, {"block 1", "a has the vector id -1"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).a = plan.final_norm.weight; }, {"used nowhere"});
  ExpectInvalid([](Plan& plan) { MambaOf(plan).in_proj.bias = plan.final_norm.weight; },
                {"in_proj bias is \"norm\" of size 6, it should be 62"});
  ExpectInvalid([](Plan& plan) { MoeOf(plan).down.pop_back(); }, {"number of down matrices is 2"});
  ExpectInvalid([](Plan& plan) { plan.matrices[1].parts[2].row_begin = 9; },
                {"matrix \"qkv\", part kv", "row_count"});
  ExpectInvalid([](Plan& plan) { plan.matrices[1].parts[2].row_count = 7; },
                {"matrix \"qkv\"", "rows is 32, but the sum of its parts' rows is 31"});
  ExpectInvalid([](Plan& plan) { plan.matrices[1].parts.clear(); }, {"\"qkv\"", "no parts"});
  ExpectInvalid([](Plan& plan) { plan.matrices[0].cols = int64_t{1} << 40; },
                {"\"embed\"", "cols"});
  ExpectInvalid([](Plan& plan) { plan.AddMatrix("extra", "extra", 1, 1); },
                {"\"extra\" is used nowhere"});
  ExpectInvalid(
      [](Plan& plan) { plan.vectors[MambaOf(plan).conv_weight].parts[0].shapes = {{152}}; },
      {"\"conv\"", "[channels, 1, taps]"});
}

TEST(Plan, OpensForShorterTexts) {
  Plan plan = SmallPlan();
  plan.max_positions = 100;
  Rope& rope = *AttentionOf(plan).rope;
  rope.trained_positions = 20;
  rope.short_inverse_frequencies = {0.5f};
  rope.long_inverse_frequencies = {0.25f};
  OpenForPositions(plan, 21);
  EXPECT_EQ(plan.max_positions, 21);
  EXPECT_EQ(rope.inverse_frequencies[0], 0.25f);
  OpenForPositions(plan, 20);
  EXPECT_EQ(rope.inverse_frequencies[0], 0.5f);
  for (const int64_t positions : {int64_t{0}, int64_t{-1}, int64_t{21}, kMaxSize + 1}) {
    EXPECT_THROW(OpenForPositions(plan, positions), Error) << positions;
  }
  // A rotation that stretches by itself takes any.
  rope = Rope{4, 100.0, "dynamic", {}};
  rope.dynamic_factor = 2;
  rope.trained_positions = 20;
  OpenForPositions(plan, 40);
  EXPECT_EQ(plan.max_positions, 40);
  EXPECT_FLOAT_EQ(rope.inverse_frequencies[1], 1.0f / 30);  // (100 * 3 ^ (4 / 2)) ^ (-2 / 4)
}

TEST(Plan, PrintsEveryField) {
  Plan plan = SmallPlan();
  plan.embedding_scale = 12;
  plan.logits_scale = 0.125f;
  plan.ignored_tensors = {"mtp.*"};
  MambaOf(plan).dt_min = 0.5f;
  EXPECT_EQ(
      PlanString(plan),
      "test: 1702 parameters\n"
      "  vocab=10 hidden=6 max_positions=unlimited\n"
      "  embedding: [10x6] scale=12\n"
      "  block 0 layer 0: rms(eps=1e-06) -> Attention(heads=4 kv_heads=2 head_dim=4 scale=0.5 "
      "rope=default(theta=10000,rotary_dim=2) qkv=[32x6]+bias output=[6x16]) -> "
      "residual_scale=0.25\n"
      "  block 1 layer 0: rms(eps=1e-06) -> Mamba2(heads=6 head_dim=3 d_state=5 groups=2 d_conv=4 "
      "dt=[0.5,inf] chunk=256 in_proj=[62x6] gated_norm=rms(eps=1e-05,groups=2) "
      "out_proj=[6x18]) -> residual_scale=0.25\n"
      "  block 2 layer 1: rms(eps=1e-06) -> DenseMlp(intermediate=7 activation=silu "
      "gate_up=[14x6] down=[6x7]) + MoeMlp(experts=3 top_k=2 intermediate=9 activation=silu "
      "router=[3x6] gate_up=[18x6] down=[6x9]) -> residual_scale=0.25\n"
      "  final_norm: rms(eps=1e-05)\n"
      "  head: [10x6] tied scale=0.125\n"
      "  ignored: mtp.*\n");
}

TEST(Plan, CombinationsThatNoBackendHasAreNamed) {
  ExpectInvalid(
      [](Plan& plan) { MambaOf(plan).gated_norm->centered = true; },
      {"block 1 (layer 0), mixer 0 (Mamba2)", "a centered gated_norm is not implemented"});
  ExpectInvalid(
      [](Plan& plan) {
        DenseMlp& mlp = std::get<DenseMlp>(plan.blocks[2].mixers[0]);
        mlp.shift_mix = plan.AddVector("mix", "mix", 6);
        Linear low;
        low.weight = plan.AddMatrix("a", "a", 2, 6);
        mlp.gate_up_adapter = Adapter{2, low, {plan.AddMatrix("b", "b", 14, 2)}};
      },
      {"a gate_up_adapter beside a shift_mix is not implemented"});
}

}  // namespace
}  // namespace adder
