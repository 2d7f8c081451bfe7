#include "checkpoint/folded_scales.h"

#include <gtest/gtest.h>

namespace adder {
namespace {

// One block of each kind of mixer, embedding and head apart or tied.
Plan MixedPlan(bool tied) {
  Plan plan;
  plan.hidden = 2;
  plan.embedding = plan.AddMatrix({"embedding", 5, 2, {}});
  plan.head.weight = tied ? plan.embedding : plan.AddMatrix({"head", 5, 2, {}});
  Mamba2 mamba;
  mamba.in_proj.weight = plan.AddMatrix({"in", 4, 2, {}});
  mamba.in_proj.bias = plan.AddVector("in.bias", "in.bias", 4);
  mamba.out_proj.weight = plan.AddMatrix({"out", 2, 2, {}});
  Attention attention;
  attention.heads = 2;
  attention.kv_heads = 1;
  attention.head_dim = 1;
  attention.scale = 1;
  attention.qkv.weight = plan.AddMatrix({"qkv", 4, 2, {}});
  attention.qkv.bias = plan.AddVector("qkv.bias", "qkv.bias", 4);
  attention.output.weight = plan.AddMatrix({"o", 2, 2, {}});
  plan.blocks.emplace_back().mixers = {mamba, attention};
  DenseMlp mlp;
  mlp.gate_up.weight = plan.AddMatrix({"gate_up", 6, 2, {}});
  mlp.down.weight = plan.AddMatrix({"down", 2, 3, {}});
  plan.blocks.emplace_back().mixers = {mlp};
  return plan;
}

TEST(FoldScales, MultipliesRowsAndBiases) {
  const Plan target = MixedPlan(false);
  Plan source = target;
  source.embedding_scale = 3;
  source.logits_scale = 0.5f;
  auto& mamba = std::get<Mamba2>(source.blocks[0].mixers[0]);
  mamba.in_proj.input_scale = 10;
  mamba.in_proj.row_scales = {{1, 2}, {3, 5}};
  auto& attention = std::get<Attention>(source.blocks[0].mixers[1]);
  attention.qkv.input_scale = 4;
  attention.scale = 0.25f;
  attention.output.row_scales = {{2, 7}};
  auto& mlp = std::get<DenseMlp>(source.blocks[1].mixers[0]);
  mlp.gate_up.row_scales = {{3, 0.5f}, {3, 1}};

  const FoldedScales folded = FoldScales(source, target);
  EXPECT_EQ(PlanString(folded.plan), PlanString(target));
  EXPECT_EQ(*folded.OfMatrix(source.embedding), std::vector<float>(5, 3.0f));
  EXPECT_EQ(*folded.OfMatrix(source.head.weight), std::vector<float>(5, 0.5f));
  EXPECT_EQ(*folded.OfMatrix(mamba.in_proj.weight), (std::vector<float>{20, 50, 50, 50}));
  // A bias is added before the rows are scaled, but not scaled with the input.
  EXPECT_EQ(*folded.OfVector(mamba.in_proj.bias), (std::vector<float>{2, 5, 5, 5}));
  EXPECT_EQ(folded.OfMatrix(mamba.out_proj.weight), nullptr);
  // The factor of the scores goes to the key's row.
  EXPECT_EQ(*folded.OfMatrix(attention.qkv.weight), (std::vector<float>{4, 4, 1, 4}));
  EXPECT_EQ(*folded.OfVector(attention.qkv.bias), (std::vector<float>{1, 1, 0.25f, 1}));
  EXPECT_EQ(*folded.OfMatrix(attention.output.weight), (std::vector<float>{7, 7}));
  EXPECT_EQ(*folded.OfMatrix(mlp.gate_up.weight), (std::vector<float>{0.5f, 0.5f, 0.5f, 1, 1, 1}));
  EXPECT_EQ(folded.OfMatrix(mlp.down.weight), nullptr);
}

TEST(FoldScales, ATiedHeadHasTheEmbeddingsFactor) {
  Plan target = MixedPlan(true);
  Plan source = target;
  source.embedding_scale = 4;
  source.logits_scale = 0.5f;
  target.logits_scale = 0.125f;
  const FoldedScales folded = FoldScales(source, target);
  EXPECT_EQ(*folded.OfMatrix(source.embedding), std::vector<float>(5, 4.0f));
  EXPECT_EQ(PlanString(folded.plan), PlanString(target));
  // Logits that the target does not make up for stay different.
  target.logits_scale = 0.5f;
  EXPECT_NE(PlanString(FoldScales(source, target).plan), PlanString(target));
}

TEST(FoldScales, LeavesWhatBothPlansHave) {
  Plan source = MixedPlan(false);
  source.embedding_scale = 3;
  std::get<DenseMlp>(source.blocks[1].mixers[0]).down.row_scales = {{2, 7}};
  const FoldedScales folded = FoldScales(source, source);
  EXPECT_TRUE(folded.matrices.empty());
  EXPECT_TRUE(folded.vectors.empty());
  EXPECT_EQ(PlanString(folded.plan), PlanString(source));
  // Keys with a norm would lose the factor again.
  Plan normed = MixedPlan(false);
  std::get<Attention>(normed.blocks[0].mixers[1]).k_norm.emplace();
  Plan scaled = normed;
  std::get<Attention>(scaled.blocks[0].mixers[1]).scale = 0.25f;
  EXPECT_TRUE(FoldScales(scaled, normed).matrices.empty());
}

}  // namespace
}  // namespace adder
