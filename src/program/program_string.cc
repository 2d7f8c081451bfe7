#include <algorithm>
#include <iomanip>
#include <sstream>

#include "core/error.h"
#include "program/program.h"

namespace adder {
namespace {

// What an op does, in a few words: "norm, [2048x768], silu-mul".
class Describe {
 public:
  explicit Describe(const Program& program) : program_(program) {}

  std::string operator()(const EmbedOp& op) const {
    return "embed " + MatrixShape(op.embedding) + Scale(op.scale);
  }
  std::string operator()(const LinearOp& op) const {
    std::string text = Norm(op.norm) + "linear " + MatrixShape(op.linear.weight);
    if (op.linear.bias != kNoId) text += " + bias";
    if (op.linear.scaled()) text += ", rows scaled";
    if (op.epilogue == Epilogue::kAdd) text += ", add";
    if (op.epilogue == Epilogue::kGated) text += ", " + Activated(op.activation, true);
    if (op.epilogue == Epilogue::kActivate) text += ", " + Activated(op.activation, false);
    if (op.row_gate != kNoId) text += " * sigmoid(row gate)";
    return text + Scale(op.scale);
  }
  std::string operator()(const Mamba2Op& op) const {
    const Mamba2& m = op.mixer;
    return Concat("mamba2 scan, heads ", m.heads, " x ", m.head_dim, ", d_state ", m.d_state,
                  ", groups ", m.groups, ", d_conv ", m.d_conv,
                  m.norm_before_gate ? ", norm before the gate" : "");
  }
  std::string operator()(const Mamba2SelectedOp& op) const {
    const Mamba2& m = op.mixer;
    return Concat("mamba2 scan of selected, heads ", m.heads, " x ", m.head_dim, ", d_state ",
                  m.d_state, ", groups ", m.groups, ", dt_rank ", m.selection->dt_rank);
  }
  std::string operator()(const NormAddOp& op) const {
    return Norm(op.norm) + "add" + Scale(op.scale);
  }
  std::string operator()(const CausalConvOp& op) const {
    std::string text = Concat("causal conv, channels ", op.channels, ", d_conv ", op.d_conv);
    if (op.gate_before >= 0) text += ", gate before";
    if (op.silu) text += ", silu";
    if (op.gate_after >= 0) text += ", gate after";
    return text;
  }
  std::string operator()(const Mamba1ScanOp& op) const {
    const Mamba1& m = op.mixer;
    const bool normed = m.dt_norm || m.b_norm || m.c_norm;
    return Concat("mamba1 scan, inner ", m.inner, ", d_state ", m.d_state, ", dt_rank ", m.dt_rank,
                  normed ? ", normed" : "");
  }
  std::string operator()(const AttentionOp& op) const {
    const Attention& a = op.mixer;
    return Concat("attention, heads ", a.heads, " / ", a.kv_heads, " x ", a.head_dim,
                  a.q_norm ? ", q norm" : "", a.k_norm ? ", k norm" : "", a.rope ? ", rope" : "",
                  a.qk_norm_after_rope ? " before the norms" : "");
  }
  std::string operator()(const RouterOp& op) const {
    const Routing& r = op.routing;
    return Concat(
        Norm(op.norm), "router, ", r.scores == RouterScores::kSigmoid ? "sigmoid, " : "",
        r.choice_bias != kNoId ? "choice bias, " : "", "top ", op.top_k, " of ", op.experts,
        r.top_groups < r.groups ? Concat(" in ", r.top_groups, " of ", r.groups, " groups")
                                : std::string());
  }
  std::string operator()(const ExpertGateUpOp& op) const {
    return Norm(op.norm) + "experts " + FirstShape(op.gate_up) + ", " +
           Activated(op.activation, op.gated);
  }
  std::string operator()(const ExpertDownOp& op) const {
    return "experts " + FirstShape(op.down) + ", weigh, add" + Scale(op.scale);
  }

 private:
  std::string MatrixShape(MatrixId id) const {
    const WeightMatrix& matrix = program_.weights->matrices[static_cast<size_t>(id)];
    return Concat("[", matrix.rows, " x ", matrix.cols, "]");
  }
  std::string FirstShape(const std::vector<MatrixId>& experts) const {
    return experts.empty() ? "none" : MatrixShape(experts[0]);
  }
  static std::string Norm(const std::optional<RmsNorm>& norm) {
    if (!norm) return "";
    return norm->groups > 1 ? Concat("norm in ", norm->groups, " groups, ") : "norm, ";
  }
  static std::string Activated(Activation activation, bool gated) {
    return ActivationName(activation) + (gated ? "(gate) * up" : "");
  }
  static std::string Scale(float scale) { return scale == 1.0f ? "" : Concat(", scale ", scale); }

  const Program& program_;
};

}  // namespace

std::string ProgramString(const Program& program) {
  size_t name_width = 2;
  size_t description_width = 4;
  std::vector<std::string> descriptions;
  for (const Op& op : program.ops) {
    const std::string& output = program.buffers[static_cast<size_t>(OutputOf(op))].name;
    descriptions.push_back(std::visit(Describe(program), op.body) + " -> " + output);
    name_width = std::max(name_width, op.name.size());
    description_width = std::max(description_width, descriptions.back().size());
  }
  std::ostringstream out;
  const auto line = [&](const std::string& name, const std::string& description, const auto& weight,
                        const auto& state, const auto& flops) {
    out << std::left << std::setw(static_cast<int>(name_width)) << name << "  "
        << std::setw(static_cast<int>(description_width)) << description << std::right
        << std::setw(14) << weight << std::setw(13) << state << std::setw(13) << flops << "\n";
  };
  line("op", "what", "weight bytes", "state bytes", "flops");
  for (size_t i = 0; i < program.ops.size(); ++i) {
    const OpCost cost = CostOf(program, static_cast<int>(i), 1, 1, 0);
    line(program.ops[i].name, descriptions[i], cost.weight_bytes, cost.state_bytes, cost.flops);
  }
  const OpCost total = CostOf(program, 1, 1, 0);
  line("total", "one token", total.weight_bytes, total.state_bytes, total.flops);
  return out.str();
}

}  // namespace adder
