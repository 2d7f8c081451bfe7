#include "cuda/wide_support.h"

#include "core/error.h"
#include "cuda/kernels/attention_wide_heads.h"
#include "cuda/kernels/bf16_rows.h"
#include "cuda/kernels/causal_conv.h"
#include "cuda/kernels/expert_groups.h"
#include "cuda/kernels/gated_delta_chunks.h"
#include "cuda/kernels/mamba2_chunks.h"
#include "cuda/kernels/rg_lru_chunks.h"
#include "cuda/kernels/rwkv7_chunks.h"
#include "cuda/supported.h"

namespace adder::cuda {
namespace {

int Narrow(int64_t value) { return static_cast<int>(value); }

// Whether all that comes behind an activation is a factor of each element.
bool HasFactorAlone(const LinearOp& op) {
  return op.epilogue == Epilogue::kActivate && op.factor != kNoId && op.row_gate == kNoId &&
         op.addend == kNoId && op.cap == 0;
}

// Each returns what of the op has no kernel, or nothing. That is sizes which hardly any released
// model has (OpenLLaMA 3B: heads of 100): rows of bf16 are copied sixteen bytes at a time, so heads
// must be multiples of eight elements, and what a chunk of a head needs must fit into shared
// memory.
struct Refused {
  const Program& program;

  std::string operator()(const EmbedOp&) const { return {}; }
  std::string operator()(const JoinOp&) const { return {}; }
  std::string operator()(const NormAddOp&) const { return {}; }
  std::string operator()(const HeadMixOp&) const { return {}; }
  std::string operator()(const HeadsLinearOp&) const { return {}; }
  std::string operator()(const UpdateOp&) const { return {}; }
  std::string operator()(const TokenShiftOp&) const { return {}; }
  std::string operator()(const CausalConvOp&) const { return {}; }
  std::string operator()(const ExpertDownOp&) const { return {}; }
  std::string operator()(const Mamba2Op& op) const {
    const Mamba2& m = op.mixer;
    if (!Mamba2ChunksSupport(Narrow(m.head_dim), Narrow(m.d_state), Narrow(m.d_conv))) {
      return OfScan(m.head_dim, m.d_state);
    }
    const bool norms_alone = m.norm_before_gate && !NormsRows(m.gated_norm, m.inner());
    return norms_alone ? "a norm before the gate of a kind of its own" : "";
  }
  std::string operator()(const Mamba2SelectedOp& op) const {
    const Mamba2& m = op.mixer;
    if (!Mamba2ChunksSupport(Narrow(m.head_dim), Narrow(m.d_state), 1)) {
      return OfScan(m.head_dim, m.d_state);
    }
    return OfConv(m.d_conv);
  }
  std::string operator()(const Mamba1ScanOp& op) const {
    if (op.mixer.inner % 8 != 0) return "a Mamba-1 width that 8 does not divide";
    return OfConv(op.mixer.d_conv);
  }
  std::string operator()(const RgLruOp& op) const {
    if (!RgLruChunksSupport(Narrow(op.mixer.block()))) {
      return Concat("RG-LRU heads of ", op.mixer.block(), " channels");
    }
    return OfConv(op.mixer.d_conv);
  }
  std::string operator()(const LightningOp& op) const {
    const LightningAttention& m = op.mixer;
    if (!Mamba2ChunksSupport(Narrow(m.head_dim), Narrow(m.head_dim), 1)) {
      return OfScan(m.head_dim, m.head_dim);
    }
    return NormsRows(m.norm, m.width()) ? "" : "a norm of lightning attention of another kind";
  }
  std::string operator()(const GatedDeltaOp& op) const {
    const GatedDelta& m = op.mixer;
    if (!GatedDeltaChunksSupport(Narrow(m.key_dim), Narrow(m.value_dim))) {
      return Concat("a gated delta rule with heads of ", m.key_dim, " x ", m.value_dim);
    }
    // Gates are read two at a time.
    const bool odd_gates = !m.gate_proj && (m.in_proj_rows() - m.values()) % 2 != 0;
    return odd_gates ? "gates of a delta rule from an odd column on" : "";
  }
  std::string operator()(const Rwkv7Op& op) const {
    return Rwkv7ChunksSupport(Narrow(op.mixer.head_dim))
               ? std::string()
               : Concat("RWKV-7 heads of ", op.mixer.head_dim);
  }
  std::string operator()(const AttentionOp& op) const {
    const int page_positions = Narrow(program.layout.page_positions);
    if (AttentionChunksSupport(Narrow(op.mixer.head_dim), page_positions)) return {};
    return Concat("attention with heads of ", op.mixer.head_dim, " in pages of ", page_positions);
  }
  std::string operator()(const LatentAttentionOp& op) const {
    const LatentAttention& m = op.mixer;
    const bool part = m.rope && m.rope->rotary_dim != m.rope_dim;
    const int page_positions = Narrow(program.layout.page_positions);
    if (!part && LatentChunksSupport(Narrow(m.latent), Narrow(m.rope_dim), page_positions)) {
      return {};
    }
    return Concat("latent attention with keys of ", m.latent, " + ", m.rope_dim, " in pages of ",
                  page_positions);
  }
  std::string operator()(const LinearOp& op) const {
    // One place serves to widen what is in bf16.
    return op.addend != kNoId && op.factor != kNoId ? "an addend and a factor" : "";
  }
  std::string operator()(const RouterOp& op) const {
    return op.experts > kMostGroupedExperts ? Concat("more than ", kMostGroupedExperts, " experts")
                                            : std::string();
  }
  std::string operator()(const ExpertGateUpOp& op) const {
    // Rows of bf16 with their padding take the place of f32.
    return 2 * op.intermediate < Bf16Stride(Narrow(op.intermediate))
               ? Concat("experts with a width of ", op.intermediate)
               : std::string();
  }

  static std::string OfScan(int64_t head_dim, int64_t d_state) {
    return Concat("a scan with heads of ", head_dim, " and states of ", d_state);
  }
  static std::string OfConv(int64_t d_conv) {
    return d_conv > kMostConvTaps ? Concat("a convolution of more than ", kMostConvTaps, " taps")
                                  : std::string();
  }
};

}  // namespace

bool NormsRows(const std::optional<RmsNorm>& norm, int64_t width) {
  if (!norm) return true;
  if (norm->centered || norm->weight == kNoId) return false;
  return norm->groups == 1 || width / norm->groups % 4 == 0;
}

bool FinishesProducts(const LinearOp& op) {
  if (NeedsFinish(op) && !GatesRowsAlone(op)) return !HasFactorAlone(op);
  if (!NeedsRule(op)) return op.row_gate != kNoId && op.epilogue != Epilogue::kGated;
  return op.row_gate != kNoId || op.epilogue == Epilogue::kAdd;
}

std::string PartWithoutWideKernel(const Program& program) {
  for (const Op& op : program.ops) {
    const std::string part = std::visit(Refused{program}, op.body);
    if (!part.empty()) return Concat(op.name, ": ", part);
  }
  return {};
}

}  // namespace adder::cuda
