// For tests: plans with dense f32 weights held in memory, filled from name-seeded random numbers or
// given values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program/program.h"

namespace adder::test {

// A small deterministic generator whose stream depends on `name` only, so that the values of one
// weight do not change when another is added.
class NamedRandom {
 public:
  explicit NamedRandom(const std::string& name) {
    for (char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  // Uniform in [-1, 1).
  float Next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return static_cast<float>(z >> 40) / static_cast<float>(1 << 23) - 1.0f;
  }
  int32_t Below(int32_t bound) {
    return static_cast<int32_t>((Next() + 1.0f) / 2.0f * static_cast<float>(bound)) % bound;
  }
  std::vector<float> Values(int64_t count, float scale, float offset = 0) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = offset + scale * Next();
    return values;
  }

 private:
  uint64_t state_ = 0xcbf29ce484222325u;
};

class PlanBuilder {
 public:
  Plan plan;

  MatrixId Matrix(const std::string& label, int64_t rows, int64_t cols, std::vector<float> values) {
    matrices_->push_back(std::move(values));
    return plan.AddMatrix(label, label, rows, cols);
  }
  MatrixId Matrix(const std::string& label, int64_t rows, int64_t cols) {
    return Matrix(label, rows, cols, NamedRandom(label).Values(rows * cols, 0.7f));
  }
  VectorId Vector(const std::string& label, std::vector<float> values) {
    const auto size = static_cast<int64_t>(values.size());
    vectors_.push_back(std::move(values));
    return plan.AddVector(label, label, size);
  }
  // Sets every element of a matrix.
  void Fill(MatrixId id, float value) {
    std::vector<float>& values = (*matrices_)[static_cast<size_t>(id)];
    std::fill(values.begin(), values.end(), value);
  }
  RmsNorm Norm(const std::string& label, int64_t size, int64_t groups = 1) {
    return {Vector(label, NamedRandom(label).Values(size, 0.5f, 1.0f)), 1e-3f, groups};
  }
  adder::Linear Linear(const std::string& label, int64_t rows, int64_t cols, bool bias = false) {
    const MatrixId weight = Matrix(label, rows, cols);
    return {weight, bias ? Vector(label + ".bias", NamedRandom(label + ".bias").Values(rows, 0.5f))
                         : kNoId};
  }

  std::shared_ptr<BoundWeights> Bind() const {
    auto weights = std::make_shared<BoundWeights>();
    for (size_t i = 0; i < matrices_->size(); ++i) {
      const int64_t rows = plan.matrices[i].rows;
      const int64_t cols = plan.matrices[i].cols;
      MatrixSegment segment;
      segment.rows = rows;
      segment.cols = cols;
      segment.data = reinterpret_cast<const std::byte*>((*matrices_)[i].data());
      weights->matrices.push_back({rows, cols, {segment}});
    }
    weights->vectors = vectors_;
    weights->storage = matrices_;
    return weights;
  }

  Program Lower() const { return LowerPlan(std::make_shared<Plan>(plan), Bind()); }

 private:
  std::shared_ptr<std::vector<std::vector<float>>> matrices_ =
      std::make_shared<std::vector<std::vector<float>>>();
  std::vector<std::vector<float>> vectors_;
};

// Embedding, final norm and head (with bias) of a plan whose blocks are added by the test.
inline PlanBuilder StartPlan(int64_t vocab, int64_t hidden) {
  PlanBuilder builder;
  builder.plan.family = "test";
  builder.plan.vocab = vocab;
  builder.plan.hidden = hidden;
  builder.plan.embedding = builder.Matrix("embedding", vocab, hidden);
  builder.plan.embedding_scale = 1.5f;
  builder.plan.final_norm = builder.Norm("final_norm", hidden);
  builder.plan.head = builder.Linear("head", vocab, hidden, true);
  builder.plan.logits_scale = 0.25f;
  return builder;
}

// heads 4 in 2 groups, head_dim 3, d_state 5, d_conv 4: no two sizes alike.
inline Mamba2 TestMamba2(PlanBuilder& builder, const std::string& label, int64_t hidden,
                         int64_t d_conv = 4, bool conv_bias = true) {
  Mamba2 m;
  m.heads = 4;
  m.head_dim = 3;
  m.d_state = 5;
  m.groups = 2;
  m.d_conv = d_conv;
  m.dt_min = 0.2f;
  m.dt_max = 2.5f;
  m.in_proj = builder.Linear(label + ".in_proj", m.in_proj_rows(), hidden, true);
  const int64_t channels = m.conv_channels();
  m.conv_weight = builder.Vector(label + ".conv",
                                 NamedRandom(label + ".conv").Values(m.d_conv * channels, 0.6f));
  if (conv_bias) {
    m.conv_bias = builder.Vector(label + ".conv_bias",
                                 NamedRandom(label + ".conv_bias").Values(channels, 0.3f));
  }
  m.dt_bias = builder.Vector(label + ".dt_bias", {-1.0f, 0.1f, 0.7f, 30.0f});
  m.a = builder.Vector(label + ".a", {-0.2f, -0.5f, -1.1f, -0.05f});
  m.d = builder.Vector(label + ".d", {0.3f, -0.4f, 0.9f, 1.2f});
  m.gated_norm = builder.Norm(label + ".gated_norm", m.inner(), 2);
  m.out_proj = builder.Linear(label + ".out_proj", hidden, m.inner(), true);
  return m;
}

// heads 4 over kv_heads 2, head_dim 6 of which 4 rotate.
inline Attention TestAttention(PlanBuilder& builder, const std::string& label, int64_t hidden) {
  Attention a;
  a.heads = 4;
  a.kv_heads = 2;
  a.head_dim = 6;
  a.scale = 0.8f;
  a.rope = Rope{4, 10000.0, "default", {1.0f, 0.03f}};
  a.qkv = builder.Linear(label + ".qkv", (4 + 2 * 2) * 6, hidden, true);
  a.output = builder.Linear(label + ".o_proj", hidden, 4 * 6);
  return a;
}

inline DenseMlp TestMlp(PlanBuilder& builder, const std::string& label, int64_t hidden) {
  DenseMlp mlp;
  mlp.intermediate = 11;
  mlp.gate_up = builder.Linear(label + ".gate_up", 2 * 11, hidden, true);
  mlp.down = builder.Linear(label + ".down", hidden, 11);
  return mlp;
}

inline MoeMlp TestMoe(PlanBuilder& builder, const std::string& label, int64_t hidden) {
  MoeMlp moe;
  moe.experts = 5;
  moe.top_k = 3;
  moe.intermediate = 6;
  moe.router = builder.Linear(label + ".router", 5, hidden);
  for (int e = 0; e < 5; ++e) {
    const std::string expert = label + ".expert" + std::to_string(e);
    moe.gate_up.push_back(builder.Matrix(expert + ".gate_up", 2 * 6, hidden));
    moe.down.push_back(builder.Matrix(expert + ".down", hidden, 6));
  }
  return moe;
}

inline void AddBlock(PlanBuilder& builder, int64_t layer, std::vector<Mixer> mixers,
                     float residual_scale = 0.6f) {
  Block block;
  block.layer = layer;
  block.pre_norm =
      builder.Norm("norm" + std::to_string(builder.plan.blocks.size()), builder.plan.hidden);
  block.mixers = std::move(mixers);
  block.residual_scale = residual_scale;
  builder.plan.blocks.push_back(std::move(block));
}

// Layer 0: Mamba-2, then MoE beside an MLP. Layer 1: attention, then an MLP. Hidden 7, vocab 13.
inline PlanBuilder TwoLayerPlan() {
  PlanBuilder builder = StartPlan(13, 7);
  AddBlock(builder, 0, {TestMamba2(builder, "m0", 7)});
  AddBlock(builder, 0, {TestMoe(builder, "e0", 7), TestMlp(builder, "s0", 7)});
  AddBlock(builder, 1, {TestAttention(builder, "a1", 7)});
  AddBlock(builder, 1, {TestMlp(builder, "s1", 7)});
  return builder;
}

}  // namespace adder::test
