#include "cuda/supported.h"

#include "core/error.h"
#include "cuda/kernels/attention.h"
#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/gated_delta.h"
#include "cuda/kernels/head_mix.h"
#include "cuda/kernels/lightning.h"
#include "cuda/kernels/linear_finish.h"
#include "cuda/kernels/mamba1.h"
#include "cuda/kernels/rg_lru.h"
#include "cuda/kernels/route.h"
#include "cuda/kernels/rwkv7.h"

namespace adder::cuda {
namespace {

// Each returns what of the op has no kernel, or nothing.
struct Unsupported {
  const Program& program;

  size_t vector_size(VectorId id) const {
    return program.weights->vectors[static_cast<size_t>(id)].size();
  }
  std::string operator()(const LinearOp& op) const {
    if (op.linear.row_scales.size() > kMostRowFactors) {
      return Concat("more than ", kMostRowFactors, " factors of rows");
    }
    return {};
  }
  std::string operator()(const AttentionOp& op) const {
    const Attention& m = op.mixer;
    if (m.head_dim > kMostHeadDim) return WideHeads(m.head_dim);
    // What only the kernel that places single heads knows of.
    bool placed = m.v_norm || m.values_from_keys || !m.owns_kv() || (m.rope && m.rope->interleaved);
    for (const std::optional<RmsNorm>& norm : {m.q_norm, m.k_norm}) {
      placed = placed || (norm && norm->weight == kNoId);
    }
    for (const std::optional<RmsNorm>& norm : {m.q_norm, m.k_norm, m.v_norm}) {
      if (!norm) continue;
      if (norm->centered) return "a layer norm";
      if (m.qk_norm_after_rope && norm->groups > 1 && !placed) {
        return "attention with norms in groups after the rotation";
      }
      const bool single =
          norm->weight == kNoId ||
          vector_size(norm->weight) == static_cast<size_t>(norm->groups * m.head_dim);
      if (placed && !single) {
        return "attention with norms of several heads beside a norm of v, norms without weights, "
               "interleaved rotary embedding, or keys that are shared or values";
      }
    }
    if (m.output_gate && (!m.owns_kv() || m.values_from_keys)) {
      return "attention with an output gate whose values are keys or another layer's";
    }
    return {};
  }
  std::string operator()(const HeadMixOp& op) const {
    const int64_t taps = op.mixer.mixing->group_taps;
    return taps * op.mixer.head_dim > kMostHeadMixFloats || op.mixer.head_dim > kMostHeadMixDim
               ? Concat("mixing of heads of ", op.mixer.head_dim, " over ", taps, " taps")
               : std::string();
  }
  std::string operator()(const HeadsLinearOp&) const { return {}; }
  std::string operator()(const LatentAttentionOp& op) const {
    if (op.mixer.key_dim() > kMostHeadDim) return WideHeads(op.mixer.key_dim());
    return op.mixer.kv_norm.centered || op.mixer.kv_norm.groups > 1
               ? "latent attention whose norm is a layer norm or in groups"
               : "";
  }
  std::string operator()(const LightningOp& op) const {
    return op.mixer.head_dim > kMostLightningDim
               ? Concat("lightning attention with heads of more than ", kMostLightningDim)
               : std::string();
  }
  std::string operator()(const RouterOp& op) const {
    if (op.norm && op.norm->centered) return "a layer norm";
    if (op.norm && op.norm->weight == kNoId) return "a norm without weights before a router";
    // A pass behind the products would have to be told of both.
    const bool uniform =
        op.router.row_scales.size() <= 1 && (op.router.input_scale == 1 || op.router.bias == kNoId);
    if (!uniform) return "a router whose rows have factors of their own";
    const int64_t choices = op.experts + op.routing.idle;
    return (!op.routing.plain() || op.router.scaled()) && choices > kMostRoutedExperts
               ? Concat("a choice among more than ", kMostRoutedExperts, " experts")
               : std::string();
  }
  std::string operator()(const ExpertGateUpOp& op) const {
    if (op.norm && op.norm->centered) return "a layer norm";
    if (op.norm && op.norm->weight == kNoId) return "a norm without weights before experts";
    return {};
  }
  std::string operator()(const JoinOp&) const { return {}; }
  std::string operator()(const UpdateOp&) const { return {}; }
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
  std::string operator()(const TokenShiftOp&) const { return {}; }
  std::string operator()(const RgLruOp& op) const {
    return op.mixer.block() > kMostRgLruBlock
               ? Concat("RG-LRU heads of more than ", kMostRgLruBlock, " channels")
               : std::string();
  }
  std::string operator()(const Rwkv7Op& op) const {
    return op.mixer.head_dim > kMostRwkv7Dim ? Concat("RWKV-7 heads of more than ", kMostRwkv7Dim)
                                             : std::string();
  }
  std::string operator()(const EmbedOp&) const { return {}; }
  std::string operator()(const Mamba2Op& op) const {
    return op.mixer.norm_before_gate && op.mixer.gated_norm->centered ? "a layer norm" : "";
  }
  std::string operator()(const ExpertDownOp&) const { return {}; }

  static std::string WideHeads(int64_t dim) {
    return Concat("attention with heads of ", dim, ", more than ", kMostHeadDim);
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

bool NeedsFinish(const LinearOp& op) {
  return op.row_gate != kNoId || op.addend != kNoId || op.factor != kNoId || op.cap > 0;
}

bool GatesRowsAlone(const LinearOp& op) {
  return op.row_gate != kNoId && op.addend == kNoId && op.factor == kNoId && op.cap == 0;
}

bool FinishesApart(const LinearOp& op) {
  return NeedsFinish(op) && !GatesRowsAlone(op) &&
         (op.epilogue == Epilogue::kGated || op.epilogue == Epilogue::kAdd);
}

bool NormsApart(const RmsNorm& norm) {
  return norm.groups > 1 || norm.centered || norm.weight == kNoId;
}

bool NeedsRule(const LinearOp& op) {
  if (NeedsFinish(op) && !GatesRowsAlone(op)) return false;
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
    const std::string part = std::visit(Unsupported{program}, op.body);
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
