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
    return "embed " + MatrixShape(op.embedding) + Scale(op.scale) + (op.norm ? ", norm" : "");
  }
  std::string operator()(const LinearOp& op) const {
    std::string text = Norm(op.norm) + "linear " + MatrixShape(op.linear.weight);
    if (op.linear.bias != kNoId) text += " + bias";
    if (op.linear.scaled()) text += ", rows scaled";
    if (op.addend != kNoId) text += " + addend";
    if (op.epilogue == Epilogue::kAdd) text += ", add";
    if (op.epilogue == Epilogue::kGated) text += ", " + Activated(op.activation, true);
    if (op.epilogue == Epilogue::kActivate) text += ", " + Activated(op.activation, false);
    if (op.row_gate != kNoId) text += " * sigmoid(row gate)";
    if (op.factor != kNoId) text += " * factor";
    if (op.cap > 0) text += Concat(", cap ", op.cap);
    return text + Scale(op.scale);
  }
  std::string operator()(const JoinOp& op) const {
    return op.inputs.size() == 1 ? "copy" : Concat("join ", op.inputs.size(), " rows");
  }
  std::string operator()(const UpdateOp& op) const {
    std::string text = Norm(op.norm);
    if (op.add_bias != kNoId || op.add_scale != kNoId) text += "scaled channels, ";
    text += op.keep == 0 ? "store" : "add";
    if (op.keep != 0 && op.keep != 1) text += Concat(" to ", op.keep, " times");
    if (op.keep_bias != kNoId || op.keep_scale != kNoId) text += " to scaled channels";
    if (op.total != kNoId) text += ", scale all";
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
  std::string operator()(const HeadMixOp& op) const {
    const Attention& a = op.mixer;
    return Concat("mix heads, ", a.heads, " / ", a.kv_heads, " x ", a.head_dim, ", taps ",
                  a.mixing->taps, " + ", a.mixing->group_taps);
  }

  std::string operator()(const TokenShiftOp& op) const {
    return Norm(op.norm) + Concat("token shift, parts ", op.parts);
  }
  std::string operator()(const RgLruOp& op) const {
    return Concat("rg-lru scan, heads ", op.mixer.heads, " x ", op.mixer.block(), ", gate ",
                  ActivationName(op.mixer.gate_activation));
  }
  std::string operator()(const Rwkv7Op& op) const {
    return Concat("rwkv7 scan, heads ", op.mixer.heads, " x ", op.mixer.head_dim,
                  op.mixer.value_mix ? ", mixes the first v" : "");
  }
  std::string operator()(const GatedDeltaOp& op) const {
    const GatedDelta& m = op.mixer;
    return Concat("gated delta scan, heads ", m.key_heads, " / ", m.value_heads, ", ", m.key_dim,
                  " x ", m.value_dim, ", decay per ", m.decay_per_channel ? "channel" : "head",
                  ", gate ", ActivationName(m.gate_activation));
  }
  std::string operator()(const AttentionOp& op) const {
    const Attention& a = op.mixer;
    return Concat(
        "attention, heads ", a.heads, " / ", a.kv_heads, " x ", a.head_dim,
        a.q_norm ? ", q norm" : "", a.k_norm ? ", k norm" : "", a.v_norm ? ", v norm" : "",
        a.rope ? ", rope" : "", a.qk_norm_after_rope ? " before the norms" : "",
        a.window > 0 ? Concat(", window ", a.window) : std::string(),
        a.values_from_keys ? ", values from keys" : "",
        a.owns_kv() ? "" : ", shared keys and values", a.output_gate ? ", output gate" : "");
  }
  std::string operator()(const HeadsLinearOp& op) const {
    return Concat("linear of each head, ", op.matrices.size(), " x ", FirstShape(op.matrices));
  }
  std::string operator()(const LatentAttentionOp& op) const {
    const LatentAttention& a = op.mixer;
    return Concat("latent attention, heads ", a.heads, ", latent ", a.latent, " + ", a.rope_dim,
                  a.rope ? ", rope" : "");
  }
  std::string operator()(const LightningOp& op) const {
    return Concat("lightning attention, heads ", op.mixer.heads, " x ", op.mixer.head_dim,
                  ", norm after");
  }
  std::string operator()(const RouterOp& op) const {
    const Routing& r = op.routing;
    return Concat(
        Norm(op.norm), "router, ", r.scores == RouterScores::kSigmoid ? "sigmoid, " : "",
        r.choice_bias != kNoId ? "choice bias, " : "", "top ", op.top_k, " of ", op.experts,
        r.top_groups < r.groups ? Concat(" in ", r.top_groups, " of ", r.groups, " groups")
                                : std::string(),
        r.expert_scale != kNoId ? ", expert scale" : "",
        r.idle > 0 ? Concat(", or ", r.idle, " idle") : std::string());
  }
  std::string operator()(const ExpertGateUpOp& op) const {
    return Norm(op.norm) + "experts " + FirstShape(op.gate_up) + ", " +
           Activated(op.activation, op.gated);
  }
  std::string operator()(const ExpertDownOp& op) const {
    return "experts " + FirstShape(op.down) + (op.store ? ", weigh" : ", weigh, add") +
           Scale(op.scale);
  }

 private:
  std::string MatrixShape(MatrixId id) const {
    const WeightMatrix& matrix = program_.weights->matrices[static_cast<size_t>(id)];
    return Concat("[", matrix.rows, " x ", matrix.cols, "]");
  }
  std::string FirstShape(const std::vector<MatrixId>& matrices) const {
    return matrices.empty() ? "none" : MatrixShape(matrices[0]);
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
