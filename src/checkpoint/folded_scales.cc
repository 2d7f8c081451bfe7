#include "checkpoint/folded_scales.h"

#include <cmath>

#include "core/error.h"

namespace adder {
namespace {

class Folder {
 public:
  Folder(const Plan& source, const Plan& target) : target_(target) { folded_.plan = source; }

  FoldedScales Fold() {
    Plan& plan = folded_.plan;
    FoldEmbeddingAndLogits();
    for (size_t b = 0; b < plan.blocks.size() && b < target_.blocks.size(); ++b) {
      std::vector<Mixer>& mixers = plan.blocks[b].mixers;
      const std::vector<Mixer>& targets = target_.blocks[b].mixers;
      for (size_t m = 0; m < mixers.size() && m < targets.size(); ++m) {
        FoldMixer(mixers[m], targets[m]);
      }
    }
    return std::move(folded_);
  }

 private:
  void FoldEmbeddingAndLogits() {
    Plan& plan = folded_.plan;
    const float embedding = plan.embedding_scale / target_.embedding_scale;
    const bool tied = plan.head.weight == plan.embedding;
    if (embedding != 1) {
      Multiply(plan.embedding, std::vector<float>(Rows(plan.embedding), embedding));
      plan.embedding_scale = target_.embedding_scale;
      if (tied) {
        // The head has the embedding's factor in it, which the target's logits make up for.
        const float logits = plan.logits_scale / embedding;
        const float wanted = target_.logits_scale;
        plan.logits_scale = std::abs(logits - wanted) <= 1e-6f * std::abs(wanted) ? wanted : logits;
      }
    }
    const float logits = plan.logits_scale / target_.logits_scale;
    if (!tied && logits != 1) {
      Multiply(plan.head.weight, std::vector<float>(Rows(plan.head.weight), logits));
      plan.logits_scale = target_.logits_scale;
    }
  }

  void FoldMixer(Mixer& mixer, const Mixer& target) {
    if (mixer.index() != target.index()) return;
    if (Mamba2* mamba = std::get_if<Mamba2>(&mixer)) {
      FoldLinear(mamba->in_proj, std::get<Mamba2>(target).in_proj);
      FoldLinear(mamba->out_proj, std::get<Mamba2>(target).out_proj);
    } else if (DenseMlp* mlp = std::get_if<DenseMlp>(&mixer)) {
      FoldLinear(mlp->gate_up, std::get<DenseMlp>(target).gate_up);
      FoldLinear(mlp->down, std::get<DenseMlp>(target).down);
    } else if (Attention* attention = std::get_if<Attention>(&mixer)) {
      const Attention& same = std::get<Attention>(target);
      FoldLinear(attention->qkv, same.qkv);
      FoldLinear(attention->output, same.output);
      // A norm would take the factor out of the keys again.
      if (attention->scale != same.scale && attention->owns_kv() && !attention->k_norm) {
        std::vector<float> rows(Rows(attention->qkv.weight), 1.0f);
        const auto first = rows.begin() + attention->q_width();
        std::fill(first, first + attention->kv_width(), attention->scale / same.scale);
        Multiply(attention->qkv.weight, rows);
        MultiplyVector(attention->qkv.bias, rows);
        attention->scale = same.scale;
      }
    }
  }

  void FoldLinear(Linear& linear, const Linear& target) {
    if (!linear.scaled() || target.scaled()) return;
    std::vector<float> rows;
    for (const RowScale& scale : linear.row_scales) {
      rows.insert(rows.end(), static_cast<size_t>(scale.rows), scale.factor);
    }
    if (rows.empty()) rows.assign(Rows(linear.weight), 1.0f);
    MultiplyVector(linear.bias, rows);
    for (float& factor : rows) factor *= linear.input_scale;
    Multiply(linear.weight, rows);
    linear.input_scale = 1;
    linear.row_scales.clear();
  }

  size_t Rows(MatrixId id) const {
    return static_cast<size_t>(folded_.plan.matrices[static_cast<size_t>(id)].rows);
  }

  void Multiply(MatrixId id, const std::vector<float>& factors) {
    Multiply(folded_.matrices[id], factors);
  }
  void MultiplyVector(VectorId id, const std::vector<float>& factors) {
    if (id != kNoId) Multiply(folded_.vectors[id], factors);
  }
  static void Multiply(std::vector<float>& to, const std::vector<float>& factors) {
    if (to.empty()) to.assign(factors.size(), 1.0f);
    if (to.size() != factors.size())
      Fail("Factors of ", to.size(), " and ", factors.size(), " rows.");
    for (size_t i = 0; i < to.size(); ++i) to[i] *= factors[i];
  }

  const Plan& target_;
  FoldedScales folded_;
};

template <class Id>
const std::vector<float>* Find(const std::map<Id, std::vector<float>>& factors, Id id) {
  const auto found = factors.find(id);
  return found == factors.end() ? nullptr : &found->second;
}

}  // namespace

const std::vector<float>* FoldedScales::OfMatrix(MatrixId id) const { return Find(matrices, id); }

const std::vector<float>* FoldedScales::OfVector(VectorId id) const { return Find(vectors, id); }

FoldedScales FoldScales(const Plan& source, const Plan& target) {
  return Folder(source, target).Fold();
}

}  // namespace adder
