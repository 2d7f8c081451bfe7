// Rows of values and what they are compared with, for tests of ops against formulas.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "program/executor.h"

namespace adder::test {

using Rows = std::vector<std::vector<double>>;

// The output rows of op `op` for `tokens` of a sequence.
inline Rows RowsUntil(Executor& executor, const std::string& op, SequenceId id,
                      const std::vector<int32_t>& tokens) {
  const std::vector<float> values =
      executor.ForwardUntil({{id, tokens, LogitsRows::kAll}}, executor.program().FindOp(op));
  const auto width = static_cast<std::ptrdiff_t>(values.size() / tokens.size());
  Rows rows;
  for (auto row = values.begin(); row != values.end(); row += width) {
    rows.emplace_back(row, row + width);
  }
  return rows;
}

inline void ExpectNear(const Rows& found, const Rows& expected) {
  constexpr double kTolerance = 2e-5;
  ASSERT_EQ(found.size(), expected.size());
  for (size_t r = 0; r < found.size(); ++r) {
    ASSERT_EQ(found[r].size(), expected[r].size());
    for (size_t i = 0; i < found[r].size(); ++i) {
      EXPECT_NEAR(found[r][i], expected[r][i], kTolerance * (1 + std::abs(expected[r][i])))
          << "row " << r << ", column " << i;
    }
  }
}

// Of a matrix of one segment of f32.
inline double WeightAt(const BoundWeights& weights, MatrixId id, size_t row, size_t col) {
  const WeightMatrix& matrix = weights.matrices[static_cast<size_t>(id)];
  return LoadFloat(matrix.segments[0].data, DType::kF32,
                   row * static_cast<size_t>(matrix.cols) + col);
}

// "op -> buffer" of every op, a line each.
inline std::string OpList(const Program& program) {
  std::string list;
  for (const Op& op : program.ops) {
    list += op.name + " -> " + program.buffers[static_cast<size_t>(OutputOf(op))].name + "\n";
  }
  return list;
}

// Expects that the prompt's last logits are bitwise the same when it comes in two parts.
inline void ExpectChunksChangeNothing(Executor& executor, std::span<const int32_t> tokens) {
  const SequenceId whole = executor.CreateSequence();
  executor.Forward({{whole, tokens, LogitsRows::kLast}});
  const std::vector<float> expected(executor.Logits(0).begin(), executor.Logits(0).end());
  for (size_t first : {size_t{1}, size_t{2}, size_t{5}}) {
    const SequenceId id = executor.CreateSequence();
    executor.Forward({{id, tokens.first(first), LogitsRows::kNone}});
    executor.Forward({{id, tokens.subspan(first), LogitsRows::kLast}});
    EXPECT_TRUE(std::ranges::equal(executor.Logits(0), expected)) << first;
  }
}

inline double Silu(double x) { return x / (1 + std::exp(-x)); }

}  // namespace adder::test
