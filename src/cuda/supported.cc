#include "cuda/supported.h"

#include "core/error.h"

namespace adder::cuda {
namespace {

// Each returns what of the op has no kernel, or nothing.
struct Unsupported {
  std::string operator()(const LinearOp& op) const {
    if (op.norm && op.norm->centered) return "a layer norm";
    if (op.input_begin != -1) return "a projection of part of its input";
    if (op.epilogue == Epilogue::kActivate) return "an MLP without a gate";
    if (op.linear.scaled()) return "a projection with scaled rows";
    if (op.row_gate != kNoId) return "an MLP with an output gate";
    if (op.addend != kNoId) return "a projection with an adapter";
    if (op.factor != kNoId) return "an MLP with layer inputs";
    if (op.cap > 0) return "capped logits";
    if (op.epilogue == Epilogue::kGated) return OfActivation(op.activation);
    return {};
  }
  std::string operator()(const AttentionOp& op) const {
    if (op.mixer.q_norm || op.mixer.k_norm) return "attention with norms of q and k";
    if (op.mixer.v_norm) return "attention with a norm of v";
    if (op.mixer.window > 0) return "attention in a window";
    if (op.mixer.values_from_keys) return "attention whose values are its keys";
    if (!op.mixer.owns_kv()) return "attention to another layer's keys";
    if (op.mixer.rope && op.mixer.rope->interleaved) return "interleaved rotary embedding";
    if (op.mixer.output_gate) return "attention with an output gate";
    return {};
  }
  std::string operator()(const HeadMixOp&) const { return "attention with mixing of heads"; }
  std::string operator()(const HeadsLinearOp&) const { return "a projection of each head"; }
  std::string operator()(const LatentAttentionOp&) const { return "latent attention"; }
  std::string operator()(const LightningOp&) const { return "lightning attention"; }
  std::string operator()(const RouterOp& op) const {
    if (op.norm && op.norm->centered) return "a layer norm";
    return op.routing.plain() && !op.router.scaled()
               ? ""
               : "a router other than softmax over the largest logits";
  }
  std::string operator()(const ExpertGateUpOp& op) const {
    if (op.norm && op.norm->centered) return "a layer norm";
    return op.gated ? OfActivation(op.activation) : "experts without a gate";
  }
  std::string operator()(const JoinOp&) const { return "a second stream beside the residual"; }
  std::string operator()(const UpdateOp&) const { return "a residual with a rule of its own"; }
  std::string operator()(const NormAddOp&) const { return "a norm after a mixer"; }
  std::string operator()(const Mamba2SelectedOp&) const { return "Mamba-2 with a selection"; }
  std::string operator()(const CausalConvOp&) const { return "a short convolution"; }
  std::string operator()(const Mamba1ScanOp&) const { return "the Mamba-1 mixer"; }
  std::string operator()(const TokenShiftOp&) const { return "a token shift"; }
  std::string operator()(const RgLruOp&) const { return "the RG-LRU mixer"; }
  std::string operator()(const Rwkv7Op&) const { return "the RWKV-7 mixer"; }
  std::string operator()(const GatedDeltaOp&) const { return "the gated delta rule"; }
  std::string operator()(const EmbedOp& op) const {
    return op.norm ? "a norm of the embedding" : "";
  }
  std::string operator()(const Mamba2Op& op) const {
    return op.mixer.norm_before_gate ? "Mamba-2 with its norm before the gate" : "";
  }
  std::string operator()(const ExpertDownOp& op) const {
    return op.store ? "a norm after experts" : "";
  }

  static std::string OfActivation(Activation activation) {
    if (activation == Activation::kSilu) return {};
    return Concat("the activation ", ActivationName(activation));
  }
};

}  // namespace

std::string UnsupportedPart(const Program& program) {
  for (const WeightMatrix& matrix : program.weights->matrices) {
    for (const MatrixSegment& segment : matrix.segments) {
      if (!segment.affine()) {
        return Concat("weights quantised in the mode ", QuantizationModeName(segment.mode));
      }
    }
  }
  for (const Op& op : program.ops) {
    const std::string part = std::visit(Unsupported{}, op.body);
    if (!part.empty()) return Concat(op.name, ": ", part);
  }
  return {};
}

void CheckSupported(const Program& program) {
  const std::string part = UnsupportedPart(program);
  if (!part.empty()) {
    Fail("The CUDA backend cannot run this model yet (", part, "). Use --device cpu.");
  }
}

}  // namespace adder::cuda
