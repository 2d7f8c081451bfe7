// What families with multi-head latent attention share, in the words of DeepSeek's configs and
// files.
#pragma once

#include <string>

#include "core/json.h"
#include "model/family.h"
#include "model/plan.h"

namespace adder {

// num_attention_heads (bounded by num_hidden_layers), kv_lora_rank, qk_nope_head_dim,
// qk_rope_head_dim (may be 0), v_head_dim and q_lora_rank (null or missing: q comes from the hidden
// state); the scale is 1 / sqrt of the query's size. The rotary embedding and the weights are left
// to the family.
LatentAttention ReadLatentAttentionSizes(const JsonObject& config);

// Below `prefix`: q_a_proj, q_a_layernorm and q_b_proj, or q_proj; kv_a_proj_with_mqa,
// kv_a_layernorm and o_proj; and per head what makes keys and values of the latent: kv_b_proj in
// Hugging Face files, embed_q and unembed_out in MLX files. `bias` is of q_a, kv_a and o_proj.
LatentAttention AddLatentAttention(Plan& plan, const std::string& prefix, const TensorNames& names,
                                   const LatentAttention& sizes, bool bias, float norm_eps);

}  // namespace adder
