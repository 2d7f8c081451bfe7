#include <sstream>
#include <string>

#include "core/error.h"
#include "model/plan.h"

namespace adder {
namespace {

// Writes "name=value" pairs separated by spaces.
class PlanPrinter {
 public:
  explicit PlanPrinter(const Plan& plan) : plan_(plan) {}

  std::string Run() {
    out_ << plan_.family << ": " << ParameterCount(plan_) << " parameters\n  vocab=" << plan_.vocab
         << " hidden=" << plan_.hidden << " max_positions=";
    if (plan_.max_positions > 0) {
      out_ << plan_.max_positions << "\n";
    } else {
      out_ << "unlimited\n";
    }
    out_ << "  embedding: " << MatrixText(plan_.embedding) << " scale=" << plan_.embedding_scale
         << (plan_.embedding_norm ? Concat(" norm=", NormText(*plan_.embedding_norm)) : "") << "\n";
    if (plan_.embedding_bias != kNoId) out_ << "  embedding_bias\n";
    if (plan_.embedding_factor != kNoId) out_ << "  embedding_factor\n";
    if (plan_.layer_inputs) {
      const LayerInputs& inputs = *plan_.layer_inputs;
      out_ << "  layer_inputs: parts=" << inputs.parts << " width=" << inputs.width
           << " embedding=" << MatrixText(inputs.embedding)
           << " embedding_scale=" << inputs.embedding_scale
           << " projection=" << LinearText(inputs.projection) << " norm=" << NormText(inputs.norm)
           << " scale=" << inputs.scale << "\n";
    }
    for (size_t i = 0; i < plan_.blocks.size(); ++i) PrintBlock(i);
    out_ << "  final_norm: " << NormText(plan_.final_norm) << "\n";
    const bool tied = plan_.head.weight == plan_.embedding;
    out_ << "  head: " << LinearText(plan_.head) << (tied ? " tied" : "")
         << " scale=" << plan_.logits_scale;
    if (plan_.logits_cap > 0) out_ << " cap=" << plan_.logits_cap;
    out_ << "\n";
    for (const std::string& name : plan_.ignored_tensors) out_ << "  ignored: " << name << "\n";
    return out_.str();
  }

 private:
  std::string MatrixText(MatrixId id) const {
    if (id < 0 || id >= static_cast<int64_t>(plan_.matrices.size())) return "none";
    const MatrixRef& matrix = plan_.matrices[id];
    return Concat("[", matrix.rows, "x", matrix.cols, "]");
  }
  std::string LinearText(const Linear& linear) const {
    std::string text = MatrixText(linear.weight) + (linear.bias != kNoId ? "+bias" : "");
    if (linear.input_scale != 1) text += Concat("*input:", linear.input_scale);
    for (const RowScale& scale : linear.row_scales) {
      text += Concat("*", scale.rows, "rows:", scale.factor);
    }
    return text;
  }
  static std::string NormText(const RmsNorm& norm) {
    std::string text = Concat(norm.centered ? "layer(eps=" : "rms(eps=", norm.eps);
    if (norm.groups != 1) text += Concat(",groups=", norm.groups);
    return text + ")";
  }
  static std::string NormText(const std::optional<RmsNorm>& norm) {
    return norm ? NormText(*norm) : std::string("none");
  }
  std::string RouterMlpText(const std::optional<RouterMlp>& mlp) const {
    if (!mlp) return "";
    return Concat(" router_mlp=(width=", mlp->width, " ", ActivationName(mlp->activation),
                  " down=", LinearText(mlp->down),
                  mlp->carried_scale != kNoId ? " carried_scale" : "",
                  " norm=", NormText(mlp->norm), " fc1=", LinearText(mlp->fc1),
                  " fc2=", LinearText(mlp->fc2), ")");
  }
  // Nothing for the common rule.
  static std::string RuleText(const ResidualRule& rule) {
    std::string text;
    if (rule.keep != 1) text += Concat(" keep=", rule.keep);
    if (rule.keep_bias != kNoId) text += " keep_bias";
    if (rule.keep_scale != kNoId) text += " keep_scale";
    if (rule.add_bias != kNoId) text += " add_bias";
    if (rule.add_scale != kNoId) text += " add_scale";
    if (rule.total != kNoId) text += " total";
    return text;
  }
  // "+adapter(rank x parts)", or nothing.
  static std::string AdapterText(const std::optional<Adapter>& adapter) {
    return adapter ? Concat("+adapter(", adapter->rank, "x", adapter->b.size(), ")")
                   : std::string();
  }
  // The first of matrices that have one shape.
  static MatrixId FirstOf(const std::vector<MatrixId>& matrices) {
    return matrices.empty() ? kNoId : matrices.front();
  }
  static std::string RopeText(const std::optional<Rope>& rope) {
    if (!rope) return "none";
    return Concat(rope->scaling, "(theta=", rope->theta, ",rotary_dim=", rope->rotary_dim,
                  rope->factor == 1 ? std::string() : Concat(",factor=", rope->factor),
                  rope->interleaved ? ",interleaved)" : ")");
  }
  static std::string ActivationText(Activation activation, bool gated) {
    return ActivationName(activation) + (gated ? "" : " ungated");
  }

  // Nothing for the common rule.
  static std::string RoutingText(const Routing& routing) {
    if (routing.plain()) return "";
    std::string text = routing.scores == RouterScores::kSigmoid ? "(sigmoid" : "(softmax";
    if (routing.choice_bias != kNoId) text += ",choice_bias";
    if (routing.top_groups < routing.groups) {
      text += Concat(",groups=", routing.top_groups, "/", routing.groups);
    }
    if (routing.idle > 0) text += Concat(",idle=", routing.idle);
    if (routing.normalize) text += Concat(",normalize(eps=", routing.normalize_eps, ")");
    if (routing.expert_scale != kNoId) text += ",expert_scale";
    return text + Concat(",scale=", routing.scale, ")");
  }

  void PrintBlock(size_t index) {
    const Block& block = plan_.blocks[index];
    out_ << "  block " << index << " layer " << block.layer << ": ";
    if (block.input == BlockInput::kResidualAndEmbedding) out_ << "x | embedding -> ";
    if (block.input == BlockInput::kSide) out_ << "side -> ";
    if (block.input == BlockInput::kResidualPlusSide) {
      out_ << "x + " << LinearText(block.side_projection) << " side -> ";
    }
    if (block.rule.normed) out_ << "x = ";
    out_ << (block.skip_pre_norm ? "x" : NormText(block.pre_norm));
    const char* separator = " -> ";
    for (size_t i = 0; i < block.mixers.size(); ++i) {
      const Mixer& mixer = block.mixers[i];
      const BranchNorms norms = block.branch_norms.empty() ? BranchNorms{} : block.branch_norms[i];
      out_ << separator;
      if (norms.pre) out_ << NormText(*norms.pre) << " of x -> ";
      out_ << MixerName(mixer) << "(";
      std::visit([this](const auto& typed) { Print(typed); }, mixer);
      out_ << ")";
      if (norms.post) out_ << " -> " << NormText(*norms.post);
      separator = " + ";
    }
    if (block.post_norm) out_ << " -> " << NormText(*block.post_norm);
    if (block.to_side) {
      out_ << " -> side\n";
    } else {
      out_ << " -> residual_scale=" << block.residual_scale << RuleText(block.rule) << "\n";
    }
  }

  void Print(const Attention& mixer) {
    out_ << "heads=" << mixer.heads << " kv_heads=" << mixer.kv_heads
         << " head_dim=" << mixer.head_dim << " scale=" << mixer.scale
         << " rope=" << RopeText(mixer.rope);
    if (mixer.q_norm) out_ << " q_norm=" << NormText(*mixer.q_norm);
    if (mixer.k_norm) out_ << " k_norm=" << NormText(*mixer.k_norm);
    if (mixer.v_norm) out_ << " v_norm=" << NormText(*mixer.v_norm);
    if (mixer.window > 0) out_ << " window=" << mixer.window;
    if (mixer.values_from_keys) out_ << " values_from_keys";
    if (!mixer.owns_kv()) out_ << " shared_kv_block=" << mixer.shared_kv_block;
    if (mixer.mixing) {
      out_ << " mixing=(taps=" << mixer.mixing->taps << " group_taps=" << mixer.mixing->group_taps
           << ")";
    }
    if (mixer.qk_norm_after_rope) out_ << " qk_norm_after_rope";
    if (mixer.output_gate) out_ << " output_gate";
    out_ << " qkv=" << LinearText(mixer.qkv) << AdapterText(mixer.qkv_adapter)
         << " output=" << LinearText(mixer.output);
  }

  void Print(const LatentAttention& mixer) {
    out_ << "heads=" << mixer.heads << " latent=" << mixer.latent << " nope_dim=" << mixer.nope_dim
         << " rope_dim=" << mixer.rope_dim << " value_dim=" << mixer.value_dim
         << " scale=" << mixer.scale << " rope=" << RopeText(mixer.rope);
    if (mixer.q_rank > 0) {
      out_ << " q_rank=" << mixer.q_rank << " q_a=" << LinearText(mixer.q_a)
           << " q_norm=" << NormText(mixer.q_norm);
    }
    out_ << " q_b=" << LinearText(mixer.q_b) << " kv_a=" << LinearText(mixer.kv_a)
         << " kv_norm=" << NormText(mixer.kv_norm)
         << " absorb=" << MatrixText(FirstOf(mixer.absorb))
         << " expand=" << MatrixText(FirstOf(mixer.expand))
         << " output=" << LinearText(mixer.output);
  }

  void Print(const LightningAttention& mixer) {
    out_ << "heads=" << mixer.heads << " head_dim=" << mixer.head_dim
         << " activation=" << ActivationName(mixer.activation) << " slopes=";
    for (size_t i = 0; i < mixer.slopes.size(); ++i) out_ << (i > 0 ? "," : "") << mixer.slopes[i];
    out_ << " qkv=" << LinearText(mixer.qkv) << " norm=" << NormText(mixer.norm)
         << " gate=" << LinearText(mixer.gate) << " output=" << LinearText(mixer.output);
  }

  void Print(const Mamba2& mixer) {
    out_ << "heads=" << mixer.heads << " head_dim=" << mixer.head_dim
         << " d_state=" << mixer.d_state << " groups=" << mixer.groups << " d_conv=" << mixer.d_conv
         << (mixer.conv_bias != kNoId ? "+bias" : "") << " dt=[" << mixer.dt_min << ","
         << mixer.dt_max << "] chunk=" << mixer.chunk << " in_proj=" << LinearText(mixer.in_proj)
         << " gated_norm=" << NormText(mixer.gated_norm)
         << (mixer.norm_before_gate ? " norm_before_gate" : "")
         << " out_proj=" << LinearText(mixer.out_proj);
    if (mixer.selection) {
      const Mamba2Selection& selection = *mixer.selection;
      out_ << " selection=(dt_rank=" << selection.dt_rank << " proj=" << LinearText(selection.proj)
           << " b_norm=" << NormText(selection.b_norm) << " c_norm=" << NormText(selection.c_norm)
           << " dt_norm=" << NormText(selection.dt_norm)
           << " dt_proj=" << LinearText(selection.dt_proj) << ")";
    }
  }

  void Print(const ShortConv& mixer) {
    out_ << "channels=" << mixer.channels << " d_conv=" << mixer.d_conv
         << (mixer.conv_bias != kNoId ? "+bias" : "") << " in_proj=" << LinearText(mixer.in_proj)
         << " out_proj=" << LinearText(mixer.out_proj);
  }

  void Print(const Mamba1& mixer) {
    const auto norm = [](const std::optional<RmsNorm>& value) {
      if (!value) return std::string("none");
      return value->weight == kNoId ? NormText(*value) + " unweighted" : NormText(*value);
    };
    out_ << "inner=" << mixer.inner << " d_state=" << mixer.d_state << " d_conv=" << mixer.d_conv
         << (mixer.conv_bias != kNoId ? "+bias" : "") << " dt_rank=" << mixer.dt_rank
         << " in_proj=" << LinearText(mixer.in_proj) << " x_proj=" << LinearText(mixer.x_proj)
         << " dt_norm=" << norm(mixer.dt_norm) << " b_norm=" << norm(mixer.b_norm)
         << " c_norm=" << norm(mixer.c_norm) << " dt_proj=" << LinearText(mixer.dt_proj)
         << " out_proj=" << LinearText(mixer.out_proj);
  }

  std::string LowRankText(const LowRank& low_rank) const {
    return Concat(LinearText(low_rank.up), "<-",
                  low_rank.activation ? ActivationName(*low_rank.activation) + "<-" : std::string(),
                  LinearText(low_rank.down));
  }

  void Print(const RgLru& mixer) {
    out_ << "width=" << mixer.width << " heads=" << mixer.heads << " d_conv=" << mixer.d_conv
         << (mixer.conv_bias != kNoId ? "+bias" : "") << " decay_scale=" << mixer.decay_scale
         << " in_proj=" << LinearText(mixer.in_proj)
         << " gate=" << ActivationName(mixer.gate_activation)
         << " out_proj=" << LinearText(mixer.out_proj);
  }

  void Print(const Rwkv7& mixer) {
    out_ << "heads=" << mixer.heads << " head_dim=" << mixer.head_dim
         << " r=" << LinearText(mixer.r) << " k=" << LinearText(mixer.k)
         << " v=" << LinearText(mixer.v) << " decay=" << LowRankText(mixer.decay)
         << " rate=" << LowRankText(mixer.rate) << " gate=" << LowRankText(mixer.gate)
         << (mixer.value_mix ? " value_mix=" + LowRankText(*mixer.value_mix) : std::string())
         << " norm=" << NormText(mixer.norm) << " output=" << LinearText(mixer.output);
  }

  void Print(const GatedDelta& mixer) {
    const auto low_rank = [this](const char* name, const std::optional<LowRank>& value) {
      return value ? name + LowRankText(*value) : std::string();
    };
    out_ << "heads=" << mixer.key_heads << "/" << mixer.value_heads << " key_dim=" << mixer.key_dim
         << " value_dim=" << mixer.value_dim << " d_conv=" << mixer.d_conv
         << (mixer.conv_bias != kNoId ? "+bias" : "")
         << " decay=" << (mixer.decay_per_channel ? "channel" : "head")
         << " qk_eps=" << mixer.qk_eps << " query_scale=" << mixer.query_scale
         << " beta_scale=" << mixer.beta_scale << " in_proj=" << LinearText(mixer.in_proj)
         << low_rank(" decay_proj=", mixer.decay_proj) << low_rank(" gate_proj=", mixer.gate_proj)
         << " norm=" << NormText(mixer.norm) << " gate=" << ActivationName(mixer.gate_activation)
         << " out_proj=" << LinearText(mixer.out_proj);
  }

  void Print(const DenseMlp& mixer) {
    out_ << "intermediate=" << mixer.intermediate
         << " activation=" << ActivationText(mixer.activation, mixer.gated)
         << " gate_up=" << LinearText(mixer.gate_up) << AdapterText(mixer.gate_up_adapter)
         << " down=" << LinearText(mixer.down);
    if (mixer.output_gate.weight != kNoId) {
      out_ << " output_gate=" << LinearText(mixer.output_gate);
    }
    if (mixer.layer_input >= 0) out_ << " layer_input=" << mixer.layer_input;
    if (mixer.shift_mix != kNoId) out_ << " shifted";
  }

  void Print(const MoeMlp& mixer) {
    out_ << "experts=" << mixer.experts << " top_k=" << mixer.top_k
         << " intermediate=" << mixer.intermediate
         << " activation=" << ActivationText(mixer.activation, mixer.gated)
         << " router=" << LinearText(mixer.router) << RoutingText(mixer.routing)
         << (mixer.router_norm ? " router_norm=" + NormText(*mixer.router_norm) : std::string())
         << RouterMlpText(mixer.router_mlp) << " gate_up=" << MatrixText(FirstOf(mixer.gate_up))
         << " down=" << MatrixText(FirstOf(mixer.down));
  }

  const Plan& plan_;
  std::ostringstream out_;
};

}  // namespace

std::string PlanString(const Plan& plan) { return PlanPrinter(plan).Run(); }

}  // namespace adder
