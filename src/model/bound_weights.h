// A plan's weights, found in a checkpoint and checked.
#pragma once

#include <memory>
#include <vector>

#include "core/weight_matrix.h"
#include "model/plan.h"

namespace adder {

// matrices[i] belongs to Plan::matrices[i], vectors[i] (f32, transform applied) to
// Plan::vectors[i].
struct BoundWeights {
  std::vector<WeightMatrix> matrices;
  std::vector<std::vector<float>> vectors;
  // Keeps the memory behind the matrix views alive (the mapped files).
  std::shared_ptr<const void> storage;
  // Whether that memory is a file mapping whose pages may be released after repacking.
  bool mapped = false;
};

}  // namespace adder
