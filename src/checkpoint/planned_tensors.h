// The tensors that a checkpoint of a plan consists of, seen from the writing side.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/plan.h"

namespace adder {

// Rows [matrix_row, matrix_row + count) of a plan matrix, stored at rows [tensor_row, ...) of a
// module's tensor (which is seen as one matrix [experts * rows, cols] when it is stacked). Of a
// transposed part they are the matrix's columns.
struct ModuleRows {
  MatrixId matrix = kNoId;
  int64_t matrix_row = 0;
  int64_t tensor_row = 0;
  int64_t count = 0;
};

// One weight module of the checkpoint and the plan matrices its rows belong to.
struct PlannedModule {
  std::string module;
  bool bare_name = false;  // the tensor has no ".weight"
  int64_t experts = 0;     // > 0: the tensor is [experts, rows, cols]
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<ModuleRows> parts;  // by tensor_row; cover every row once

  std::string tensor_name() const { return bare_name ? module : module + ".weight"; }
  int64_t total_rows() const { return experts > 0 ? experts * rows : rows; }
  // The tensor's shape with its last dimension replaced by `last`.
  Shape shape(int64_t last) const {
    return experts > 0 ? Shape{experts, rows, last} : Shape{rows, last};
  }
};

// The modules of all matrices, in the order in which the plan mentions them. Throws Error when rows
// of a module would be missing or written twice.
std::vector<PlannedModule> PlannedModules(const Plan& plan);

}  // namespace adder
