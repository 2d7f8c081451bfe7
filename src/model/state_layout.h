// What a sequence remembers, derived from a plan: sizes and places of recurrent states and KV.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "model/plan.h"

namespace adder {

// One recurrent state of one mixer inside a sequence's recurrent slot.
struct RecurrentState {
  int block = 0;
  int mixer = 0;
  // "conv": [d_conv - 1, channels], oldest first; "ssm": [heads, d_state, head_dim] of Mamba-2,
  // [d_state, inner] of Mamba-1; "h": [heads, k, v] of lightning attention;
  // "value": [kv_heads * head_dim / 2], v2 of attention with mixing, whose "conv" has q | k;
  // "delta": [value_heads, key_dim, value_dim] of the gated delta rule; "lru": [width]; "shift":
  // [hidden], the previous token's input; "wkv": [heads, head_dim, head_dim] of RWKV-7.
  std::string name;
  Shape shape;
  int64_t offset = 0;  // in floats from the start of the slot; a multiple of 16
  int64_t size = 0;    // in elements
  // f32; of Mamba-2's "ssm" what the layout was made for. Narrower elements lie packed in floats,
  // the last of which may have room left.
  DType dtype = DType::kF32;

  int64_t bytes() const { return size * static_cast<int64_t>(DTypeSize(dtype)); }
  int64_t floats() const { return (bytes() + 3) / 4; }
};

// Keys and values of one attention mixer: pages hold the keys of all their positions, kv_heads *
// head_dim each, then the values. Latent attention has one key head and no values of their own.
struct KvState {
  int block = 0;
  int mixer = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  bool has_values = true;

  // Floats of one position.
  int64_t key_width() const { return kv_heads * head_dim; }
  int64_t value_width() const { return has_values ? key_width() : 0; }
};

// Recurrent states can only be restored from a copy; KV can be truncated to fewer positions.
struct StateLayout {
  std::vector<RecurrentState> recurrent;
  std::vector<KvState> kv;
  int64_t recurrent_floats = 0;  // of one slot, a multiple of 16
  int64_t page_positions = 64;   // token positions per KV page
  DType mamba2_dtype = DType::kF32;

  int64_t recurrent_bytes() const { return recurrent_floats * 4; }
  // f32 bytes that one position adds over all attention mixers.
  int64_t kv_bytes_per_position() const;
  // Index into `recurrent` of the state `name` of a mixer, or into `kv`. -1 when there is none.
  int FindRecurrent(int block, int mixer, const std::string& name) const;
  int FindKv(int block, int mixer) const;
};

// Keeps Mamba-2's "ssm" states as `mamba2_dtype`: f32, f16 or bf16.
StateLayout MakeStateLayout(const Plan& plan, DType mamba2_dtype = DType::kF32);

// "f32", "f16" or "bf16": how options and reports call a dtype of states.
const char* StateDTypeName(DType dtype);
// The dtype of such a name. Throws Error for another.
DType ParseStateDType(const std::string& name);

}  // namespace adder
