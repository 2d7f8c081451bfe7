// Programs for tests that look at sizes alone.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "model/family_test_support.h"
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

// visit(name, program) for each geometry of the shared test data; how many there are.
template <class Visit>
int ForEachPublishedGeometry(Visit visit) {
  int count = 0;
  const std::filesystem::path folder = adder::testing::SharedFolder() / "geometries";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const Json config = ReadJsonFile(entry.path());
    visit(entry.path().stem().string(),
          LowerWithoutValues(adder::testing::BuildPlan(config, TensorNames::Planned(false))));
    ++count;
  }
  return count;
}

}  // namespace adder::cuda
