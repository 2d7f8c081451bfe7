#include "model/latent_attention_fields.h"

#include <cmath>

#include "model/family_fields.h"

namespace adder {
namespace {

// The matrices of each head: K^T and V of its keys and values.
void AddHeadMatrices(Plan& plan, const std::string& prefix, const TensorNames& names,
                     LatentAttention& attention) {
  const std::string label = LabelOf(prefix);
  const bool mlx = names.Uses(prefix + ".embed_q.weight", true);
  const int64_t head_rows = attention.nope_dim + attention.value_dim;
  for (int64_t head = 0; head < attention.heads; ++head) {
    MatrixPart absorb;
    MatrixPart expand;
    if (mlx) {
      absorb.module = prefix + ".embed_q";
      absorb.rows = absorb.row_count = attention.latent;
      expand.module = prefix + ".unembed_out";
      expand.rows = expand.row_count = attention.value_dim;
      absorb.experts = expand.experts = attention.heads;
      absorb.expert = expand.expert = head;
    } else {
      // Rows of a head: K [nope_dim, latent], then V [value_dim, latent].
      absorb.module = expand.module = prefix + ".kv_b_proj";
      absorb.rows = expand.rows = attention.heads * head_rows;
      absorb.row_begin = head * head_rows;
      absorb.row_count = attention.nope_dim;
      absorb.transposed = true;
      expand.row_begin = absorb.row_begin + attention.nope_dim;
      expand.row_count = attention.value_dim;
    }
    const std::string number = std::to_string(head);
    attention.absorb.push_back(plan.AddMatrix(MatrixRef{
        label + ".absorb." + number, attention.latent, attention.nope_dim, {std::move(absorb)}}));
    attention.expand.push_back(plan.AddMatrix(MatrixRef{
        label + ".expand." + number, attention.value_dim, attention.latent, {std::move(expand)}}));
  }
}

}  // namespace

LatentAttention ReadLatentAttentionSizes(const JsonObject& config) {
  LatentAttention attention;
  // Every head of every layer has matrices of its own.
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  attention.heads = config.Int({"num_attention_heads"}, 1, kMaxHeadsInAll / layers);
  attention.latent = config.Int({"kv_lora_rank"}, 1, kMaxHeadDim);
  attention.nope_dim = config.Int({"qk_nope_head_dim"}, 1, kMaxHeadDim);
  attention.rope_dim = config.Int({"qk_rope_head_dim"}, 0, kMaxHeadDim);
  attention.value_dim = config.Int({"v_head_dim"}, 1, kMaxHeadDim);
  if (config.Has("q_lora_rank")) attention.q_rank = ReadSize(config, {"q_lora_rank"});
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.query_dim()));
  return attention;
}

LatentAttention AddLatentAttention(Plan& plan, const std::string& prefix, const TensorNames& names,
                                   const LatentAttention& sizes, bool bias, float norm_eps) {
  LatentAttention attention = sizes;
  const int64_t query_rows = sizes.heads * sizes.query_dim();
  if (sizes.q_rank > 0) {
    attention.q_a = AddLinear(plan, prefix + ".q_a_proj", sizes.q_rank, plan.hidden, bias);
    attention.q_norm = AddNorm(plan, prefix + ".q_a_layernorm", sizes.q_rank, norm_eps);
    attention.q_b = AddLinear(plan, prefix + ".q_b_proj", query_rows, sizes.q_rank, false);
  } else {
    attention.q_b = AddLinear(plan, prefix + ".q_proj", query_rows, plan.hidden, false);
  }
  attention.kv_a =
      AddLinear(plan, prefix + ".kv_a_proj_with_mqa", sizes.key_dim(), plan.hidden, bias);
  attention.kv_norm = AddNorm(plan, prefix + ".kv_a_layernorm", sizes.latent, norm_eps);
  AddHeadMatrices(plan, prefix, names, attention);
  attention.output =
      AddLinear(plan, prefix + ".o_proj", plan.hidden, sizes.heads * sizes.value_dim, bias);
  // Old converters wrote the rotary frequencies, which follow from the config.
  plan.ignored_tensors.push_back(prefix + ".rotary_emb.inv_freq");
  return attention;
}

}  // namespace adder
