// Programs for tests that look at sizes alone.
#pragma once

#include <memory>
#include <utility>

#include "core/dtype.h"
#include "program/program.h"

namespace adder::cuda {

// The program of a plan whose matrices have no values.
inline Program LowerWithoutValues(Plan plan) {
  auto weights = std::make_shared<BoundWeights>();
  for (const MatrixRef& matrix : plan.matrices) {
    MatrixSegment segment;
    segment.rows = matrix.rows;
    segment.cols = matrix.cols;
    segment.dtype = DType::kBF16;
    weights->matrices.push_back({matrix.rows, matrix.cols, {segment}});
  }
  for (const VectorRef& vector : plan.vectors) {
    weights->vectors.emplace_back(static_cast<size_t>(VectorSize(vector)));
  }
  return LowerPlan(std::make_shared<Plan>(std::move(plan)), std::move(weights));
}

}  // namespace adder::cuda
