#include "cuda/supported.h"

#include "core/error.h"
#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/gated_delta.h"
#include "cuda/kernels/linear_finish.h"
#include "cuda/kernels/mamba1.h"
#include "cuda/kernels/route.h"

namespace adder::cuda {
namespace {

// Each returns what of the op has no kernel, or nothing.
struct Unsupported {
  std::string operator()(const LinearOp& op) const {
    if (op.norm && op.norm->centered) return "a layer norm";
    if (op.input_begin != -1) return "a projection of part of its input";
    if (op.linear.row_scales.size() > kMostRowFactors) {
      return Concat("more than ", kMostRowFactors, " factors of rows");
    }
    if (op.addend != kNoId) return "a projection with an adapter";
    if (op.factor != kNoId) return "an MLP with layer inputs";
    if (op.cap > 0) return "capped logits";
    return {};
  }
  std::string operator()(const AttentionOp& op) const {
    for (const std::optional<RmsNorm>& norm : {op.mixer.q_norm, op.mixer.k_norm}) {
      if (!norm) continue;
      if (norm->weight == kNoId) return "attention with norms of q and k without weights";
      if (norm->centered) return "a layer norm";
      if (op.mixer.qk_norm_after_rope && norm->groups > 1) {
        return "attention with norms in groups after the rotation";
      }
    }
    if (op.mixer.v_norm) return "attention with a norm of v";
    if (op.mixer.window > 0) return "attention in a window";
    if (op.mixer.values_from_keys) return "attention whose values are its keys";
    if (!op.mixer.owns_kv()) return "attention to another layer's keys";
    if (op.mixer.rope && op.mixer.rope->interleaved) return "interleaved rotary embedding";
    return {};
  }
  std::string operator()(const HeadMixOp&) const { return "attention with mixing of heads"; }
  std::string operator()(const HeadsLinearOp&) const { return "a projection of each head"; }
  std::string operator()(const LatentAttentionOp&) const { return "latent attention"; }
  std::string operator()(const LightningOp&) const { return "lightning attention"; }
  std::string operator()(const RouterOp& op) const {
    if (op.norm && op.norm->centered) return "a layer norm";
    if (op.router.scaled()) return "a router with scaled rows";
    if (op.routing.expert_scale != kNoId) return "a router with a scale of each expert";
    if (op.routing.idle > 0) return "a router with choices that are no experts";
    return !op.routing.plain() && op.experts > kMostRoutedExperts
               ? Concat("a choice among more than ", kMostRoutedExperts, " experts")
               : std::string();
  }
  std::string operator()(const ExpertGateUpOp& op) const {
    if (op.norm && op.norm->centered) return "a layer norm";
    return {};
  }
  std::string operator()(const JoinOp&) const { return "a second stream beside the residual"; }
  std::string operator()(const UpdateOp&) const { return "a residual with a rule of its own"; }
  std::string operator()(const NormAddOp& op) const {
    return op.norm.centered ? "a layer norm" : "";
  }
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
  std::string operator()(const TokenShiftOp&) const { return "a token shift"; }
  std::string operator()(const RgLruOp&) const { return "the RG-LRU mixer"; }
  std::string operator()(const Rwkv7Op&) const { return "the RWKV-7 mixer"; }
  std::string operator()(const GatedDeltaOp& op) const {
    const GatedDelta& m = op.mixer;
    if (m.key_dim > kMostDeltaKeyDim) {
      return Concat("a gated delta rule with keys of more than ", kMostDeltaKeyDim, " elements");
    }
    if (m.value_dim > kMostDeltaValueDim || m.value_dim % 4 != 0) {
      return Concat("a gated delta rule with values of more than ", kMostDeltaValueDim,
                    " elements, or of no multiple of 4");
    }
    if (m.gate_activation != Activation::kSilu && m.gate_activation != Activation::kSigmoid) {
      return "a gated delta rule whose gate is neither silu nor sigmoid";
    }
    return m.norm.centered ? "a layer norm" : "";
  }
  std::string operator()(const EmbedOp& op) const {
    return op.norm ? "a norm of the embedding" : "";
  }
  std::string operator()(const Mamba2Op& op) const {
    return op.mixer.norm_before_gate && op.mixer.gated_norm->centered ? "a layer norm" : "";
  }
  std::string operator()(const ExpertDownOp& op) const {
    return op.store ? "a norm after experts" : "";
  }

  static std::string OfSelection(const Linear& dt_proj,
                                 std::initializer_list<std::optional<RmsNorm>> norms) {
    if (dt_proj.scaled()) return "a dt_proj with scaled rows";
    for (const std::optional<RmsNorm>& norm : norms) {
      if (norm && norm->centered) return "a layer norm";
      if (norm && norm->groups > 1) return "norms of dt, B or C in groups";
    }
    return {};
  }
};

}  // namespace

bool NeedsFinish(const LinearOp& op) { return op.row_gate != kNoId; }

bool NeedsRule(const LinearOp& op) {
  switch (op.epilogue) {
    case Epilogue::kGated:
      return op.activation != Activation::kSilu || op.linear.scaled();
    case Epilogue::kActivate:
      return true;
    case Epilogue::kStore:
    case Epilogue::kAdd:
      return !HasUniformFactor(op.linear);
  }
  return true;
}

bool NeedsRule(const ExpertGateUpOp& op) { return !op.gated || op.activation != Activation::kSilu; }

bool HasUniformFactor(const Linear& linear) {
  return linear.row_scales.size() <= 1 && (linear.input_scale == 1 || linear.bias == kNoId);
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
