#include "program/launch_bound.h"

#include <algorithm>
#include <iterator>
#include <type_traits>

namespace adder {
namespace {

// The mixer with its MLP.
constexpr int64_t kMambaLayer = 6;
constexpr int64_t kAttentionLayer = 7;
constexpr int64_t kExpertLayer = 8;
constexpr int64_t kOutsideLayers = 4;

// A pass over what a matrix reads, and one over its products.
int64_t PassesBeside(const LinearOp& op) {
  const bool before = op.norm && (op.norm->centered || op.norm->weight == kNoId);
  const bool behind = op.addend != kNoId || op.factor != kNoId || op.cap > 0;
  return static_cast<int64_t>(before) + static_cast<int64_t>(behind);
}

// Of one op: a matrix product is one launch, also with a norm before it and an addition behind it;
// a mixer may need a second phase, attention over a long context a third. Norms of other kinds, and
// what products are combined with, are launches of their own.
struct MostOfOp {
  int64_t operator()(const EmbedOp& op) const { return op.norm ? 2 : 1; }
  int64_t operator()(const LinearOp& op) const { return 1 + PassesBeside(op); }
  int64_t operator()(const JoinOp& op) const { return static_cast<int64_t>(op.inputs.size()); }
  int64_t operator()(const Mamba2Op&) const { return 2; }
  int64_t operator()(const Mamba2SelectedOp&) const { return 3; }
  // dt_proj, then the recurrence.
  int64_t operator()(const Mamba1ScanOp&) const { return 2; }
  int64_t operator()(const AttentionOp&) const { return 3; }
  int64_t operator()(const LatentAttentionOp&) const { return 2; }
  int64_t operator()(const LightningOp&) const { return 2; }
  int64_t operator()(const TokenShiftOp&) const { return 2; }
  int64_t operator()(const RouterOp& op) const { return op.router.scaled() ? 2 : 1; }
  // The sum begins as zero.
  int64_t operator()(const ExpertDownOp& op) const { return op.store ? 2 : 1; }
  template <class Body>
  int64_t operator()(const Body&) const {
    return 1;
  }
};

// What the op adds to the bound of a layer: launches that a layer of the usual mixers lacks.
struct BeyondUsual {
  int64_t operator()(const LinearOp& op) const { return op.norm && op.norm->groups > 1 ? 1 : 0; }
  int64_t operator()(const Mamba2Op& op) const { return op.mixer.norm_before_gate ? 1 : 0; }
  int64_t operator()(const GatedDeltaOp& op) const {
    return static_cast<int64_t>(op.mixer.decay_proj.has_value()) +
           static_cast<int64_t>(op.mixer.gate_proj.has_value());
  }
  template <class Body>
  int64_t operator()(const Body&) const {
    return std::is_same_v<Body, NormAddOp> || std::is_same_v<Body, CausalConvOp> ||
                   std::is_same_v<Body, Mamba2SelectedOp> || std::is_same_v<Body, Mamba1ScanOp>
               ? 1
               : 0;
  }
};

// Whether a layer with the op is bounded by what its ops come to alone: mixers and rules that few
// families have are a launch each.
struct IsRare {
  bool operator()(const LinearOp& op) const { return PassesBeside(op) > 0; }
  bool operator()(const RouterOp& op) const { return MostOfOp{}(op) > 1; }
  bool operator()(const ExpertDownOp& op) const { return op.store; }
  template <class Body>
  bool operator()(const Body&) const {
    return std::is_same_v<Body, JoinOp> || std::is_same_v<Body, UpdateOp> ||
           std::is_same_v<Body, HeadsLinearOp> || std::is_same_v<Body, LatentAttentionOp> ||
           std::is_same_v<Body, LightningOp> || std::is_same_v<Body, HeadMixOp> ||
           std::is_same_v<Body, TokenShiftOp> || std::is_same_v<Body, RgLruOp> ||
           std::is_same_v<Body, Rwkv7Op>;
  }
};

// Whether the op is a shift whose norm, and all that reads it, its launch includes.
bool BeginsJoined(const Op& op) {
  const auto* shift = std::get_if<TokenShiftOp>(&op.body);
  return shift != nullptr && shift->norm && shift->norm->centered && shift->norm->groups == 1;
}

// Whether another op of its layer has the op in its launch.
bool IsJoined(const Program& program, const Op& op) {
  const auto* linear = std::get_if<LinearOp>(&op.body);
  if (linear == nullptr) return false;
  return std::any_of(program.ops.begin(), program.ops.end(), [&](const Op& other) {
    if (other.layer != op.layer) return false;
    if (BeginsJoined(other)) return std::get<TokenShiftOp>(other.body).output == linear->input;
    const auto* scan = std::get_if<Rwkv7Op>(&other.body);
    if (scan == nullptr) return false;
    const BufferId made[] = {scan->decay, scan->rate, scan->gate, scan->value_mix};
    return std::find(std::begin(made), std::end(made), linear->output) != std::end(made);
  });
}

}  // namespace

int64_t MostLaunches(const Program& program, int64_t layer, bool joins) {
  int64_t sum = 0;
  int64_t most = layer < 0 ? kOutsideLayers : kMambaLayer;
  int64_t beyond = 0;
  bool rare = false;
  for (const Op& op : program.ops) {
    if (op.layer != layer || (joins && IsJoined(program, op))) continue;
    sum += joins && BeginsJoined(op) ? 1 : std::visit(MostOfOp{}, op.body);
    beyond += std::visit(BeyondUsual{}, op.body);
    rare = rare || std::visit(IsRare{}, op.body);
    if (std::holds_alternative<RouterOp>(op.body)) most = std::max(most, kExpertLayer);
    if (std::holds_alternative<AttentionOp>(op.body)) most = std::max(most, kAttentionLayer);
  }
  // Outside of layers there is also what chooses tokens.
  if (layer < 0) return rare ? sum + kOutsideLayers - 2 : most;
  return rare ? sum : std::min(sum, most + beyond);
}

}  // namespace adder
