// Bamba: layers of Mamba-2 or attention, each followed by a gated MLP. The rotary embedding turns
// the first half of each head. Hugging Face and MLX files use the same names.
#include <cmath>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// attn_layer_indices lists the attention layers; all others are Mamba-2.
std::vector<LayerKind> ReadLayerKinds(const JsonObject& config, int64_t layers) {
  std::vector<LayerKind> kinds;
  for (const bool attention : ReadListedLayers(config, "attn_layer_indices", layers)) {
    kinds.push_back(attention ? LayerKind::kAttention : LayerKind::kMamba);
  }
  return kinds;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "bamba";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 262144);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const std::vector<LayerKind> kinds = ReadLayerKinds(config, layers);
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-5);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const bool attention_bias = config.Bool({"attention_bias"}, false);
  const bool mlp_bias = config.Bool({"mlp_bias"}, false);

  Attention attention = ReadAttentionSizes(config, plan.hidden);
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  // The reference has half of each head turn, unless rope_parameters says otherwise: it puts that
  // in place of the config's own partial_rotary_factor.
  if (config.Number({"partial_rotary_factor"}, 0.5) != 0.5) {
    Fail(config.where(), ": the field partial_rotary_factor is ",
         config.Number({"partial_rotary_factor"}), "; only 0.5 is implemented for this family.");
  }
  attention.rope = ReadRope(config, attention.head_dim, 0.5);
  // The first files state the turned part of each head itself.
  RequireInt(config, "attn_rotary_emb", attention.rope->rotary_dim);

  const Mamba2 mamba = ReadMamba2Sizes(config, plan.hidden);
  Mamba2Options mamba_options;
  mamba_options.proj_bias = config.Bool({"mamba_proj_bias"}, false);
  mamba_options.conv_bias = config.Bool({"mamba_conv_bias"}, true);
  mamba_options.eps = eps;

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.final_layernorm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    Mixer mixer;
    if (kinds[layer] == LayerKind::kMamba) {
      mixer = AddMamba2(plan, prefix + ".mamba", mamba, mamba_options);
    } else {
      mixer = AddAttention(plan, prefix + ".self_attn", attention, attention_bias);
    }
    plan.blocks.push_back(MakeBlock(plan, layer, prefix + ".input_layernorm", eps, {mixer}, 1));
    plan.blocks.push_back(MakeBlock(
        plan, layer, prefix + ".pre_ff_layernorm", eps,
        {AddGateUpMlp(plan, prefix + ".feed_forward", intermediate, activation, mlp_bias)}, 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_bamba;
const Family kFamily_bamba = {
    "bamba",
    "Bamba: Mamba-2 and attention with MLPs",
    {"BambaForCausalLM"},
    Build,
};

}  // namespace adder
