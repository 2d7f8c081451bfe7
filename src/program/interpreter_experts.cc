// Routers, and the experts that they choose.
#include <algorithm>
#include <limits>
#include <numeric>

#include "program/formulas.h"
#include "program/interpreter_ops.h"

namespace adder {

std::vector<size_t> Interpreter::Largest(const std::vector<double>& values, int64_t count) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return values[a] > values[b]; });
  order.resize(static_cast<size_t>(count));
  return order;
}

std::vector<double> Interpreter::ChoiceScores(const Routing& routing,
                                              std::vector<double> scores) const {
  if (routing.choice_bias != kNoId) {
    for (size_t e = 0; e < scores.size(); ++e) scores[e] += Vector(routing.choice_bias)[e];
  }
  if (routing.top_groups == routing.groups) return scores;
  const size_t size = scores.size() / static_cast<size_t>(routing.groups);
  std::vector<double> group_scores;
  for (size_t begin = 0; begin < scores.size(); begin += size) {
    std::vector<double> group(scores.begin() + static_cast<std::ptrdiff_t>(begin),
                              scores.begin() + static_cast<std::ptrdiff_t>(begin + size));
    std::sort(group.rbegin(), group.rend());
    group_scores.push_back(group[0] + group[1]);
  }
  const std::vector<size_t> kept = Largest(group_scores, routing.top_groups);
  for (size_t e = 0; e < scores.size(); ++e) {
    if (std::find(kept.begin(), kept.end(), e / size) == kept.end()) {
      scores[e] = -std::numeric_limits<double>::infinity();
    }
  }
  return scores;
}

void Interpreter::Run(const RouterOp& op) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    std::vector<double> scores = Apply(op.router, {NormalizedRow(op.input, i, op.norm)}).front();
    if (op.routing.scores == RouterScores::kSigmoid) {
      std::transform(scores.begin(), scores.end(), scores.begin(), Sigmoid);
    } else {
      SoftmaxInPlace(scores);
    }
    const std::vector<size_t> chosen = Largest(ChoiceScores(op.routing, scores), op.top_k);
    double sum = op.routing.normalize_eps;
    for (size_t expert : chosen) sum += scores[expert];
    float* out = RowOf(op.output, i);
    for (size_t j = 0; j < chosen.size(); ++j) {
      if (static_cast<int64_t>(chosen[j]) >= op.experts) {
        out[j] = 0;
        out[chosen.size() + j] = 0;
        continue;
      }
      const double weight = scores[chosen[j]] / (op.routing.normalize ? sum : 1.0);
      const VectorId scales = op.routing.expert_scale;
      out[j] = static_cast<float>(op.routing.scale * weight *
                                  (scales == kNoId ? 1.0f : Vector(scales)[chosen[j]]));
      out[chosen.size() + j] = static_cast<float>(chosen[j]);
    }
  }
}

void Interpreter::Run(const ExpertGateUpOp& op) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const std::vector<double> x = NormalizedRow(op.input, i, op.norm);
    for (int64_t j = 0; j < op.top_k; ++j) {
      const MatrixId matrix = op.gate_up[ChosenExpert(op.routing, i, op.top_k, j)];
      const std::vector<double> y = Multiply(matrix, {x}).front();
      float* out = RowOf(op.output, i) + j * op.intermediate;
      const auto width = static_cast<size_t>(op.intermediate);
      for (size_t r = 0; r < width; ++r) {
        const double up = op.gated ? y[width + r] : 1.0;
        out[r] = static_cast<float>(Activate(op.activation, y[r]) * up);
      }
    }
  }
}

void Interpreter::Run(const ExpertDownOp& op) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    float* out = RowOf(op.output, i);
    std::vector<double> sum(static_cast<size_t>(Width(op.output)), 0.0);
    for (int64_t j = 0; j < op.top_k; ++j) {
      const float* x = RowOf(op.input, i) + j * op.intermediate;
      const MatrixId matrix = op.down[ChosenExpert(op.routing, i, op.top_k, j)];
      const std::vector<double> y =
          Multiply(matrix, {std::vector<double>(x, x + op.intermediate)}).front();
      const double weight = RowOf(op.routing, i)[j];
      for (size_t r = 0; r < sum.size(); ++r) sum[r] += weight * y[r];
    }
    for (size_t r = 0; r < sum.size(); ++r) {
      out[r] = static_cast<float>((op.store ? 0.0f : out[r]) + op.scale * sum[r]);
    }
  }
}

}  // namespace adder
