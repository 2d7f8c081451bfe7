#include "program/launch_bound.h"

#include <algorithm>

namespace adder {
namespace {

// The mixer with its MLP.
constexpr int64_t kMambaLayer = 6;
constexpr int64_t kAttentionLayer = 7;
constexpr int64_t kExpertLayer = 8;
constexpr int64_t kOutsideLayers = 4;

// Of one op: a matrix product is one launch, also with a norm before it and an addition behind it;
// a mixer may need a second phase, attention over a long context a third.
int64_t MostOfOp(const Op& op) {
  if (std::holds_alternative<Mamba2Op>(op.body)) return 2;
  // dt_proj, then the recurrence.
  if (std::holds_alternative<Mamba1ScanOp>(op.body)) return 2;
  if (std::holds_alternative<AttentionOp>(op.body)) return 3;
  return 1;
}

}  // namespace

int64_t MostLaunches(const Program& program, int64_t layer) {
  if (layer < 0) return kOutsideLayers;
  int64_t sum = 0;
  int64_t most = kMambaLayer;
  for (const Op& op : program.ops) {
    if (op.layer != layer) continue;
    sum += MostOfOp(op);
    if (std::holds_alternative<RouterOp>(op.body)) most = std::max(most, kExpertLayer);
    if (std::holds_alternative<AttentionOp>(op.body)) most = std::max(most, kAttentionLayer);
  }
  return std::min(sum, most);
}

}  // namespace adder
