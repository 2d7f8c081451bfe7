#include "cuda/supported.h"

#include "core/error.h"

namespace adder::cuda {
namespace {

// Each returns what of the op has no kernel, or nothing.
struct Unsupported {
  std::string operator()(const LinearOp& op) const {
    if (op.epilogue == Epilogue::kActivate) return "an MLP without a gate";
    if (op.linear.scaled()) return "a projection with scaled rows";
    if (op.row_gate != kNoId) return "an MLP with an output gate";
    if (op.epilogue == Epilogue::kGated) return OfActivation(op.activation);
    return {};
  }
  std::string operator()(const AttentionOp& op) const {
    if (!op.mixer.qk_norm_after_rope) return {};
    for (const std::optional<RmsNorm>& norm : {op.mixer.q_norm, op.mixer.k_norm}) {
      if (norm && norm->groups > 1) return "norms in groups after the rotation";
    }
    return {};
  }
  std::string operator()(const RouterOp& op) const {
    return op.routing.plain() && !op.router.scaled()
               ? ""
               : "a router other than softmax over the largest logits";
  }
  std::string operator()(const ExpertGateUpOp& op) const {
    return op.gated ? OfActivation(op.activation) : "experts without a gate";
  }
  std::string operator()(const NormAddOp&) const { return "a norm after a mixer"; }
  std::string operator()(const Mamba2SelectedOp&) const { return "Mamba-2 with a selection"; }
  std::string operator()(const CausalConvOp&) const { return "a short convolution"; }
  std::string operator()(const Mamba1ScanOp&) const { return "the Mamba-1 mixer"; }
  std::string operator()(const EmbedOp&) const { return {}; }
  std::string operator()(const Mamba2Op& op) const {
    return op.mixer.norm_before_gate ? "Mamba-2 with its norm before the gate" : "";
  }
  std::string operator()(const ExpertDownOp&) const { return {}; }

  static std::string OfActivation(Activation activation) {
    if (activation == Activation::kSilu) return {};
    return Concat("the activation ", ActivationName(activation));
  }
};

}  // namespace

std::string UnsupportedPart(const Program& program) {
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
