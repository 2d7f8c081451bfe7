// Mixture-of-experts ops: tokens are grouped by expert, and only chosen experts' weights are read.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "core/thread_pool.h"
#include "cpu/linear.h"
#include "program/program.h"

namespace adder {

// What the ops below work with for the length of one call.
struct MoeContext {
  const LoadedWeights& weights;
  ThreadPool& pool;
  std::vector<MatmulScratch>& scratch;
  bool quantize;  // fast mode
};

// Chooses top_k experts by the rule of `routing` (plan.h) and writes their weights, then their
// indices, to out [2 * top_k]. `logits` [experts] are overwritten with the scores. `choice_bias`
// and `expert_scale` are none or [experts]; `scratch` has room for `experts` floats. The idle ones
// count among the experts; where one of them was chosen, weight and index are 0.
void ChooseExperts(const Routing& routing, const float* choice_bias, const float* expert_scale,
                   float* logits, int64_t experts, int64_t top_k, float* scratch, float* out);

class MoeRunner {
 public:
  // Buffers hold one row per token: input [tokens, cols], routing [tokens, 2 * top_k], output
  // [tokens, top_k * intermediate].
  void GateUp(const MoeContext& context, const ExpertGateUpOp& op, const InputNorm& norm,
              int64_t tokens, const float* input, const float* routing, float* output);
  // input [tokens, top_k * intermediate], output [tokens, width], added to unless op.store.
  void Down(const MoeContext& context, const ExpertDownOp& op, int64_t tokens, const float* input,
            const float* routing, float* output, int64_t width);

 private:
  // One token's use of one expert.
  struct Use {
    int64_t token;
    int64_t slot;  // j-th choice of the token
  };
  // The uses of one expert: uses_[begin, end).
  struct Group {
    size_t expert;
    size_t begin;
    size_t end;
  };

  // Fills uses_ and groups_ from the routing rows.
  void GroupByExpert(const float* routing, int64_t tokens, int64_t top_k, size_t experts);
  // Multiplies rows[use] of every use with its expert's matrix into results_ [uses, rows of it].
  // `row_of` gives the address of a use's input row of `cols` floats.
  template <class RowOf>
  void MultiplyGroups(const MoeContext& context, const std::vector<MatrixId>& matrices,
                      const RowOf& row_of);

  std::vector<Use> uses_;
  std::vector<Group> groups_;
  PreparedInput normalized_;
  std::deque<PreparedInput> inputs_;  // one per group
  Scratch<float> gathered_;
  Scratch<float> results_;
  Scratch<float> sums_;
};

}  // namespace adder
