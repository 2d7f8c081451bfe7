// The constant factors that MLX's layout of a family holds inside its weights.
#pragma once

#include <map>
#include <vector>

#include "model/plan.h"

namespace adder {

// What the weights of `source` are multiplied by so that `target`, a plan of the same model whose
// layout has the factors inside the weights, computes the same.
struct FoldedScales {
  std::map<MatrixId, std::vector<float>> matrices;  // a factor for each row
  std::map<VectorId, std::vector<float>> vectors;   // a factor for each element
  // `source` without the factors.
  Plan plan;

  const std::vector<float>* OfMatrix(MatrixId id) const;
  const std::vector<float>* OfVector(VectorId id) const;
};

// Folds the factors of embedding and logits, of linear maps of Mamba-2, attention and MLPs, and of
// attention scores (into the keys), where the target has none. Factors of other parts stay in the
// plan.
FoldedScales FoldScales(const Plan& source, const Plan& target);

}  // namespace adder
