#include "cuda/supported.h"

#include "core/error.h"
#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/linear_finish.h"
#include "cuda/kernels/mamba1.h"
#include "cuda/kernels/route.h"

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
    if (op.router.scaled()) return "a router with scaled rows";
    return !op.routing.plain() && op.experts > kMostRoutedExperts
               ? Concat("a choice among more than ", kMostRoutedExperts, " experts")
               : std::string();
  }
  std::string operator()(const ExpertGateUpOp&) const { return {}; }
  std::string operator()(const NormAddOp&) const { return {}; }
  std::string operator()(const Mamba2SelectedOp& op) const {
    const Mamba2Selection& selection = *op.mixer.selection;
    return OfSelection(selection.dt_proj, {selection.dt_norm, selection.b_norm, selection.c_norm});
  }
  std::string operator()(const CausalConvOp& op) const {
    return op.d_conv > kMostConvTaps ? Concat("a convolution of more than ", kMostConvTaps, " taps")
                                     : std::string();
  }
  std::string operator()(const Mamba1ScanOp& op) const {
    const Mamba1& m = op.mixer;
    if (m.d_state > kMostMamba1State) {
      return Concat("a Mamba-1 state of more than ", kMostMamba1State, " elements a channel");
    }
    return OfSelection(m.dt_proj, {m.dt_norm, m.b_norm, m.c_norm});
  }
  std::string operator()(const EmbedOp&) const { return {}; }
  std::string operator()(const Mamba2Op&) const { return {}; }
  std::string operator()(const ExpertDownOp&) const { return {}; }

  static std::string OfSelection(const Linear& dt_proj,
                                 std::initializer_list<std::optional<RmsNorm>> norms) {
    if (dt_proj.scaled()) return "a dt_proj with scaled rows";
    for (const std::optional<RmsNorm>& norm : norms) {
      if (norm && norm->groups > 1) return "norms of dt, B or C in groups";
    }
    return {};
  }
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
