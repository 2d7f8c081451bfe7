#include "cuda/supported.h"

#include "core/error.h"
#include "cuda/kernels/linear_finish.h"

namespace adder::cuda {
namespace {

// Each returns what of the op has no kernel, or nothing.
struct Unsupported {
  std::string operator()(const LinearOp& op) const {
    return op.linear.row_scales.size() > kMostRowFactors
               ? Concat("more than ", kMostRowFactors, " factors of rows")
               : std::string();
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
  std::string operator()(const ExpertGateUpOp&) const { return {}; }
  std::string operator()(const NormAddOp&) const { return "a norm after a mixer"; }
  std::string operator()(const Mamba2SelectedOp&) const { return "Mamba-2 with a selection"; }
  std::string operator()(const CausalConvOp&) const { return "a short convolution"; }
  std::string operator()(const Mamba1ScanOp&) const { return "the Mamba-1 mixer"; }
  std::string operator()(const EmbedOp&) const { return {}; }
  std::string operator()(const Mamba2Op& op) const {
    return op.mixer.norm_before_gate ? "Mamba-2 with its norm before the gate" : "";
  }
  std::string operator()(const ExpertDownOp&) const { return {}; }
};

}  // namespace

bool NeedsFinish(const LinearOp& op) {
  const Linear& linear = op.linear;
  const bool plain_gate = op.epilogue == Epilogue::kGated && op.activation == Activation::kSilu &&
                          op.row_gate == kNoId && !linear.scaled();
  const bool uniform =
      linear.row_scales.size() <= 1 && (linear.input_scale == 1 || linear.bias == kNoId);
  const bool stores = op.epilogue == Epilogue::kStore || op.epilogue == Epilogue::kAdd;
  return !plain_gate && !(stores && uniform);
}

bool NeedsFinish(const ExpertGateUpOp& op) {
  return !op.gated || op.activation != Activation::kSilu;
}

float UniformFactor(const Linear& linear) {
  return linear.row_scales.empty() ? linear.input_scale
                                   : linear.input_scale * linear.row_scales.front().factor;
}

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
