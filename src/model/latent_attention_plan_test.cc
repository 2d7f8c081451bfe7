// Latent attention and transposed parts in plans and states.
#include <gtest/gtest.h>

#include "model/plan.h"
#include "model/refused_plan_for_test.h"
#include "model/state_layout.h"

namespace adder {
namespace {

// Hidden 6, vocab 10; heads 2, latent 5, nope_dim 3, rope_dim 4, value_dim 7, q_rank 8.
Plan SmallPlan() {
  Plan plan;
  plan.family = "test";
  plan.vocab = 10;
  plan.hidden = 6;
  plan.embedding = plan.AddMatrix("embed", "embed", 10, 6);
  plan.head.weight = plan.embedding;
  plan.final_norm.weight = plan.AddVector("norm", "norm.weight", 6);

  LatentAttention a;
  a.heads = 2;
  a.latent = 5;
  a.nope_dim = 3;
  a.rope_dim = 4;
  a.value_dim = 7;
  a.q_rank = 8;
  a.scale = 0.5f;
  a.rope = Rope{4, 10000.0, "default", {1.0f, 0.1f}, true};
  a.q_a.weight = plan.AddMatrix("q_a", "q_a", 8, 6);
  a.q_norm = RmsNorm{plan.AddVector("q_norm", "q_norm", 8), 1e-6f, 1};
  a.q_b.weight = plan.AddMatrix("q_b", "q_b", 14, 8);
  a.kv_a.weight = plan.AddMatrix("kv_a", "kv_a", 9, 6);
  a.kv_norm.weight = plan.AddVector("kv_norm", "kv_norm", 5);
  for (int64_t head = 0; head < 2; ++head) {
    MatrixPart absorb{"kv_b", 20, head * 10, 3};
    absorb.transposed = true;
    a.absorb.push_back(plan.AddMatrix(MatrixRef{"absorb", 5, 3, {absorb}}));
    a.expand.push_back(
        plan.AddMatrix(MatrixRef{"expand", 7, 5, {MatrixPart{"kv_b", 20, head * 10 + 3, 7}}}));
  }
  a.output.weight = plan.AddMatrix("out", "out", 6, 14);
  RmsNorm pre{plan.AddVector("pre", "pre.weight", 6), 1e-6f, 1};
  plan.blocks.push_back(Block{0, pre, {a}, 1, std::nullopt});
  return plan;
}

LatentAttention& AttentionOf(Plan& plan) {
  return std::get<LatentAttention>(plan.blocks[0].mixers[0]);
}

template <class Change>
void ExpectInvalid(Change change, const std::string& words) {
  Plan plan = SmallPlan();
  change(plan);
  test::ExpectRefused(plan, words);
}

TEST(LatentAttentionPlan, Validates) {
  EXPECT_NO_THROW(ValidatePlan(SmallPlan()));
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).heads = 0; }, "heads is 0");
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).latent = 4; }, "kv_a is \"kv_a\"");
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).rope_dim = 3; }, "rotary_dim is 4");
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).value_dim = 6; }, "expand is \"expand\"");
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).absorb.pop_back(); }, "absorb matrices");
  ExpectInvalid([](Plan& plan) { AttentionOf(plan).q_rank = 0; }, "q_rank is 0");
  ExpectInvalid([](Plan& plan) { plan.matrices[4].parts[0].row_count = 2; }, "cols is 3");
  ExpectInvalid([](Plan& plan) { plan.matrices[4].parts.push_back(plan.matrices[4].parts[0]); },
                "a transposed part is the only one");
}

TEST(LatentAttentionPlan, OneKeyHeadWithoutValuesIsKept) {
  const StateLayout layout = MakeStateLayout(SmallPlan());
  ASSERT_EQ(layout.kv.size(), 1u);
  EXPECT_EQ(layout.kv[0].key_width(), 9);
  EXPECT_EQ(layout.kv[0].value_width(), 0);
  EXPECT_EQ(layout.kv_bytes_per_position(), 36);
}

TEST(LatentAttentionPlan, IsPrinted) {
  const std::string text = PlanString(SmallPlan());
  EXPECT_NE(text.find("LatentAttention(heads=2 latent=5 nope_dim=3 rope_dim=4 value_dim=7"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("rotary_dim=4,interleaved)"), std::string::npos) << text;
}

}  // namespace
}  // namespace adder
