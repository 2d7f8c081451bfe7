#include "cpu/moe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "cpu/elementwise.h"

namespace adder {

namespace {

// Writes the indices of the `count` largest of values [size], largest first (ties: lower index).
void PickLargest(const float* values, int64_t size, int64_t count, float* indices) {
  for (int64_t j = 0; j < count; ++j) {
    int64_t best = -1;
    for (int64_t i = 0; i < size; ++i) {
      const bool taken = std::find(indices, indices + j, static_cast<float>(i)) != indices + j;
      if (!taken && (best < 0 || values[i] > values[best])) best = i;
    }
    indices[j] = static_cast<float>(best);
  }
}

// exp(values - largest) in place; returns their sum.
float Exponentials(float* values, int64_t size) {
  const float largest = *std::max_element(values, values + size);
  float sum = 0;
  for (int64_t i = 0; i < size; ++i) {
    values[i] = std::exp(values[i] - largest);
    sum += values[i];
  }
  return sum;
}

// Makes the choice scores outside of the best groups the least.
void KeepBestGroups(const Routing& routing, int64_t experts, float* choice) {
  const int64_t size = experts / routing.groups;
  std::vector<float> sums;
  for (int64_t begin = 0; begin < experts; begin += size) {
    float first = choice[begin];
    float second = choice[begin + 1];
    if (second > first) std::swap(first, second);
    for (int64_t e = begin + 2; e < begin + size; ++e) {
      if (choice[e] > first) {
        second = std::exchange(first, choice[e]);
      } else {
        second = std::max(second, choice[e]);
      }
    }
    sums.push_back(first + second);
  }
  std::vector<float> kept(static_cast<size_t>(routing.top_groups));
  PickLargest(sums.data(), routing.groups, routing.top_groups, kept.data());
  for (int64_t e = 0; e < experts; ++e) {
    const auto group = static_cast<float>(e / size);
    if (std::find(kept.begin(), kept.end(), group) == kept.end()) {
      choice[e] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace

void ChooseExperts(const Routing& routing, const float* choice_bias, const float* expert_scale,
                   float* logits, int64_t experts, int64_t top_k, float* scratch, float* out) {
  float* indices = out + top_k;
  // Softmax keeps the order of the logits, and normalised over the chosen it needs no others.
  const bool plain = routing.plain();
  if (routing.scores == RouterScores::kSigmoid) {
    for (int64_t e = 0; e < experts; ++e) logits[e] = 1.0f / (1.0f + std::exp(-logits[e]));
  } else if (!plain) {
    const float sum = Exponentials(logits, experts);
    for (int64_t e = 0; e < experts; ++e) logits[e] /= sum;
  }
  for (int64_t e = 0; e < experts; ++e) {
    scratch[e] = choice_bias != nullptr ? logits[e] + choice_bias[e] : logits[e];
  }
  if (routing.top_groups < routing.groups) KeepBestGroups(routing, experts, scratch);
  PickLargest(scratch, experts, top_k, indices);
  for (int64_t j = 0; j < top_k; ++j) out[j] = logits[static_cast<int64_t>(indices[j])];
  float sum = routing.normalize_eps;
  if (plain) {
    sum = Exponentials(out, top_k);
  } else {
    for (int64_t j = 0; j < top_k; ++j) sum += out[j];
  }
  for (int64_t j = 0; j < top_k; ++j) {
    if (routing.normalize) out[j] /= sum;
    out[j] *= routing.scale;
    if (expert_scale != nullptr) out[j] *= expert_scale[static_cast<int64_t>(indices[j])];
    if (static_cast<int64_t>(indices[j]) >= experts - routing.idle) out[j] = indices[j] = 0;
  }
}

void MoeRunner::GroupByExpert(const float* routing, int64_t tokens, int64_t top_k, size_t experts) {
  const auto expert_of = [&](int64_t token, int64_t slot) {
    return static_cast<size_t>(routing[token * 2 * top_k + top_k + slot]);
  };
  // A counting sort by expert; tokens keep their order.
  std::vector<size_t> starts(experts + 1, 0);
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) ++starts[expert_of(t, j) + 1];
  }
  groups_.clear();
  for (size_t e = 0; e < experts; ++e) {
    starts[e + 1] += starts[e];
    if (starts[e + 1] > starts[e]) groups_.push_back({e, starts[e], starts[e + 1]});
  }
  uses_.resize(static_cast<size_t>(tokens * top_k));
  for (int64_t t = 0; t < tokens; ++t) {
    for (int64_t j = 0; j < top_k; ++j) uses_[starts[expert_of(t, j)]++] = {t, j};
  }
}

template <class RowOf>
void MoeRunner::MultiplyGroups(const MoeContext& context, const std::vector<MatrixId>& matrices,
                               const RowOf& row_of) {
  const LoadedMatrix& first = context.weights.matrix(matrices.front());
  const auto cols = static_cast<size_t>(first.cols);
  const auto rows = static_cast<size_t>(first.rows);
  float* gathered = gathered_.Get(uses_.size() * cols);
  float* results = results_.Get(uses_.size() * rows);
  for (size_t i = 0; i < uses_.size(); ++i) {
    std::memcpy(gathered + i * cols, row_of(uses_[i]), cols * sizeof(float));
  }
  while (inputs_.size() < groups_.size()) inputs_.emplace_back();
  std::vector<MatmulJob> jobs;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_[i];
    const LoadedMatrix& matrix = context.weights.matrix(matrices[group.expert]);
    inputs_[i].Prepare(gathered + group.begin * cols, first.cols,
                       static_cast<int64_t>(group.end - group.begin), InputNorm{}, matrix,
                       context.quantize, context.pool);
    MatmulJob job;
    job.matrix = &matrix;
    job.input = &inputs_[i];
    job.output.data = results + group.begin * rows;
    job.output.stride = first.rows;
    jobs.push_back(job);
  }
  RunMatmuls(jobs, context.pool, context.scratch);
}

void MoeRunner::GateUp(const MoeContext& context, const ExpertGateUpOp& op, const InputNorm& norm,
                       int64_t tokens, const float* input, const float* routing, float* output) {
  GroupByExpert(routing, tokens, op.top_k, op.gate_up.size());
  const LoadedMatrix& matrix = context.weights.matrix(op.gate_up.front());
  normalized_.Prepare(input, matrix.cols, tokens, norm, matrix, false, context.pool);
  const float* rows = normalized_.rows();
  MultiplyGroups(context, op.gate_up,
                 [&](const Use& use) { return rows + use.token * matrix.cols; });
  context.pool.ParallelFor(
      static_cast<int64_t>(uses_.size()), 4, [&](int64_t begin, int64_t end, int) {
        for (int64_t i = begin; i < end; ++i) {
          const Use& use = uses_[static_cast<size_t>(i)];
          const float* gate = results_.data() + i * matrix.rows;
          ActivateRow(op.activation, gate, op.gated ? gate + op.intermediate : nullptr,
                      op.intermediate,
                      output + (use.token * op.top_k + use.slot) * op.intermediate);
        }
      });
}

void MoeRunner::Down(const MoeContext& context, const ExpertDownOp& op, int64_t tokens,
                     const float* input, const float* routing, float* output, int64_t width) {
  GroupByExpert(routing, tokens, op.top_k, op.down.size());
  MultiplyGroups(context, op.down, [&](const Use& use) {
    return input + (use.token * op.top_k + use.slot) * op.intermediate;
  });
  // Where the result of a token's j-th choice is, so that a token's sum runs in order of j.
  std::vector<size_t> result_of(uses_.size());
  for (size_t i = 0; i < uses_.size(); ++i) {
    result_of[static_cast<size_t>(uses_[i].token * op.top_k + uses_[i].slot)] = i;
  }
  float* sums = sums_.Get(static_cast<size_t>(tokens * width));
  context.pool.ParallelFor(tokens, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      float* sum = sums + t * width;
      std::memset(sum, 0, static_cast<size_t>(width) * sizeof(float));
      for (int64_t j = 0; j < op.top_k; ++j) {
        const size_t result = result_of[static_cast<size_t>(t * op.top_k + j)];
        AddScaledRow(results_.data() + result * static_cast<size_t>(width),
                     routing[t * 2 * op.top_k + j], width, sum);
      }
      float* out = output + t * width;
      if (op.store) std::memset(out, 0, static_cast<size_t>(width) * sizeof(float));
      AddScaledRow(sum, op.scale, width, out);
    }
  });
}

}  // namespace adder
