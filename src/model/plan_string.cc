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
         << "\n";
    for (size_t i = 0; i < plan_.blocks.size(); ++i) PrintBlock(i);
    out_ << "  final_norm: " << NormText(plan_.final_norm) << "\n";
    const bool tied = plan_.head.weight == plan_.embedding;
    out_ << "  head: " << LinearText(plan_.head) << (tied ? " tied" : "")
         << " scale=" << plan_.logits_scale << "\n";
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
    std::string text = Concat("rms(eps=", norm.eps);
    if (norm.groups != 1) text += Concat(",groups=", norm.groups);
    return text + ")";
  }
  static std::string NormText(const std::optional<RmsNorm>& norm) {
    return norm ? NormText(*norm) : std::string("none");
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
    if (routing.normalize) text += Concat(",normalize(eps=", routing.normalize_eps, ")");
    return text + Concat(",scale=", routing.scale, ")");
  }

  void PrintBlock(size_t index) {
    const Block& block = plan_.blocks[index];
    out_ << "  block " << index << " layer " << block.layer << ": " << NormText(block.pre_norm);
    const char* separator = " -> ";
    for (const Mixer& mixer : block.mixers) {
      out_ << separator << MixerName(mixer) << "(";
      std::visit([this](const auto& typed) { Print(typed); }, mixer);
      out_ << ")";
      separator = " + ";
    }
    if (block.post_norm) out_ << " -> " << NormText(*block.post_norm);
    out_ << " -> residual_scale=" << block.residual_scale << "\n";
  }

  void Print(const Attention& mixer) {
    out_ << "heads=" << mixer.heads << " kv_heads=" << mixer.kv_heads
         << " head_dim=" << mixer.head_dim << " scale=" << mixer.scale << " rope=";
    if (mixer.rope) {
      out_ << mixer.rope->scaling << "(theta=" << mixer.rope->theta
           << ",rotary_dim=" << mixer.rope->rotary_dim << ")";
    } else {
      out_ << "none";
    }
    if (mixer.q_norm) out_ << " q_norm=" << NormText(*mixer.q_norm);
    if (mixer.k_norm) out_ << " k_norm=" << NormText(*mixer.k_norm);
    if (mixer.qk_norm_after_rope) out_ << " qk_norm_after_rope";
    out_ << " qkv=" << LinearText(mixer.qkv) << " output=" << LinearText(mixer.output);
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

  void Print(const DenseMlp& mixer) {
    out_ << "intermediate=" << mixer.intermediate
         << " activation=" << ActivationText(mixer.activation, mixer.gated)
         << " gate_up=" << LinearText(mixer.gate_up) << " down=" << LinearText(mixer.down);
    if (mixer.output_gate.weight != kNoId) {
      out_ << " output_gate=" << LinearText(mixer.output_gate);
    }
  }

  void Print(const MoeMlp& mixer) {
    out_ << "experts=" << mixer.experts << " top_k=" << mixer.top_k
         << " intermediate=" << mixer.intermediate
         << " activation=" << ActivationText(mixer.activation, mixer.gated)
         << " router=" << LinearText(mixer.router) << RoutingText(mixer.routing)
         << " gate_up=" << MatrixText(mixer.gate_up.empty() ? kNoId : mixer.gate_up[0])
         << " down=" << MatrixText(mixer.down.empty() ? kNoId : mixer.down[0]);
  }

  const Plan& plan_;
  std::ostringstream out_;
};

}  // namespace

std::string PlanString(const Plan& plan) { return PlanPrinter(plan).Run(); }

}  // namespace adder
