#include "model/state_layout.h"

#include <utility>

#include "core/error.h"

namespace adder {
namespace {

// States start at multiples of 64 bytes so that vector loads of any width are aligned.
int64_t RoundUp16(int64_t floats) { return (floats + 15) / 16 * 16; }

}  // namespace

int64_t StateLayout::kv_bytes_per_position() const {
  int64_t floats = 0;
  for (const KvState& state : kv) floats += state.key_width() + state.value_width();
  return floats * 4;
}

int StateLayout::FindRecurrent(int block, int mixer, const std::string& name) const {
  for (size_t i = 0; i < recurrent.size(); ++i) {
    const RecurrentState& state = recurrent[i];
    if (state.block == block && state.mixer == mixer && state.name == name) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

int StateLayout::FindKv(int block, int mixer) const {
  for (size_t i = 0; i < kv.size(); ++i) {
    if (kv[i].block == block && kv[i].mixer == mixer) return static_cast<int>(i);
  }
  return -1;
}

StateLayout MakeStateLayout(const Plan& plan, DType mamba2_dtype) {
  StateLayout layout;
  layout.mamba2_dtype = mamba2_dtype;
  const auto add = [&layout](int block, int mixer, const char* name, Shape shape,
                             DType dtype = DType::kF32) {
    RecurrentState state;
    state.block = block;
    state.mixer = mixer;
    state.name = name;
    state.dtype = dtype;
    state.size = 1;
    for (int64_t dim : shape) state.size *= dim;  // bounded by ValidatePlan
    state.shape = std::move(shape);
    state.offset = layout.recurrent_floats;
    layout.recurrent_floats += RoundUp16(state.floats());
    layout.recurrent.push_back(std::move(state));
  };
  for (int block = 0; block < static_cast<int>(plan.blocks.size()); ++block) {
    const std::vector<Mixer>& mixers = plan.blocks[block].mixers;
    for (int mixer = 0; mixer < static_cast<int>(mixers.size()); ++mixer) {
      if (const auto* mamba = std::get_if<Mamba2>(&mixers[mixer])) {
        add(block, mixer, "conv", {mamba->d_conv - 1, mamba->conv_channels()});
        add(block, mixer, "ssm", {mamba->heads, mamba->d_state, mamba->head_dim}, mamba2_dtype);
      } else if (const auto* selective = std::get_if<Mamba1>(&mixers[mixer])) {
        add(block, mixer, "conv", {selective->d_conv - 1, selective->inner});
        add(block, mixer, "ssm", {selective->d_state, selective->inner});
      } else if (const auto* lightning = std::get_if<LightningAttention>(&mixers[mixer])) {
        add(block, mixer, "h", {lightning->heads, lightning->head_dim, lightning->head_dim});
      } else if (const auto* conv = std::get_if<ShortConv>(&mixers[mixer])) {
        add(block, mixer, "conv", {conv->d_conv - 1, conv->channels});
      } else if (const auto* delta = std::get_if<GatedDelta>(&mixers[mixer])) {
        add(block, mixer, "conv", {delta->d_conv - 1, delta->conv_channels()});
        add(block, mixer, "delta", {delta->value_heads, delta->key_dim, delta->value_dim});
      } else if (const auto* lru = std::get_if<RgLru>(&mixers[mixer])) {
        add(block, mixer, "conv", {lru->d_conv - 1, lru->width});
        add(block, mixer, "lru", {lru->width});
      } else if (const auto* rwkv = std::get_if<Rwkv7>(&mixers[mixer])) {
        add(block, mixer, "shift", {plan.hidden});
        add(block, mixer, "wkv", {rwkv->heads, rwkv->head_dim, rwkv->head_dim});
      } else if (const auto* mlp = std::get_if<DenseMlp>(&mixers[mixer])) {
        if (mlp->shift_mix != kNoId) add(block, mixer, "shift", {plan.hidden});
      } else if (const auto* attention = std::get_if<Attention>(&mixers[mixer])) {
        if (!attention->owns_kv()) continue;
        layout.kv.push_back({block, mixer, attention->kv_heads, attention->head_dim});
        if (!attention->mixing) continue;
        add(block, mixer, "conv",
            {attention->mixing->past(), attention->q_width() + attention->kv_width()});
        add(block, mixer, "value", {attention->kv_width() / 2});
      } else if (const auto* latent = std::get_if<LatentAttention>(&mixers[mixer])) {
        layout.kv.push_back({block, mixer, 1, latent->key_dim(), false});
      }
    }
  }
  return layout;
}

const char* StateDTypeName(DType dtype) {
  return dtype == DType::kF16 ? "f16" : dtype == DType::kBF16 ? "bf16" : "f32";
}

DType ParseStateDType(const std::string& name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (name == StateDTypeName(dtype)) return dtype;
  }
  Fail("States are kept as f32, f16 or bf16, not as '", name, "'.");
}

}  // namespace adder
