#include "checkpoint/planned_tensors.h"

#include <algorithm>
#include <unordered_map>

#include "core/error.h"

namespace adder {

std::vector<PlannedModule> PlannedModules(const Plan& plan) {
  std::vector<PlannedModule> modules;
  std::unordered_map<std::string, size_t> index;
  for (size_t id = 0; id < plan.matrices.size(); ++id) {
    const MatrixRef& matrix = plan.matrices[id];
    int64_t matrix_row = 0;
    for (const MatrixPart& part : matrix.parts) {
      const auto [entry, is_new] = index.emplace(part.module, modules.size());
      if (is_new) {
        const int64_t cols = part.transposed ? matrix.rows : matrix.cols;
        modules.push_back({part.module, part.bare_name, part.experts, part.rows, cols, {}});
      }
      const int64_t first = part.experts > 0 ? part.expert * part.rows : 0;
      modules[entry->second].parts.push_back(
          {static_cast<MatrixId>(id), matrix_row, first + part.row_begin, part.row_count});
      matrix_row += part.row_count;
    }
  }
  for (PlannedModule& module : modules) {
    std::sort(module.parts.begin(), module.parts.end(),
              [](const ModuleRows& a, const ModuleRows& b) { return a.tensor_row < b.tensor_row; });
    int64_t next = 0;
    for (const ModuleRows& part : module.parts) {
      if (part.tensor_row != next) {
        Fail("The plan of a ", plan.family, " model does not use each row of ",
             module.tensor_name(), " once (at row ", next, ").");
      }
      next += part.count;
    }
    if (next != module.total_rows()) {
      Fail("The plan of a ", plan.family, " model uses ", next, " of the ", module.total_rows(),
           " rows of ", module.tensor_name(), ".");
    }
  }
  return modules;
}

}  // namespace adder
