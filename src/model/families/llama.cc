// Llama 2 and 3: attention with rotary embedding and a gated MLP, each behind an RMSNorm.
// Hugging Face and MLX files use the same names.
#include <cmath>

#include "model/family_fields.h"

namespace adder {
namespace {

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "llama";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 2048);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const bool attention_bias = config.Bool({"attention_bias"}, false);
  const bool mlp_bias = config.Bool({"mlp_bias"}, false);
  // Slices of the projections summed in another order: a training-time option.
  RequireInt(config, "pretraining_tp", 1);

  Attention attention = ReadAttentionSizes(config, plan.hidden);
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  attention.rope = ReadRope(config, attention.head_dim);
  // Of files for mlx-lm; transformers has no windows in this family.
  const std::vector<int64_t> windows = ReadWindows(config, layers, plan.max_positions);

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    attention.window = windows[static_cast<size_t>(layer)];
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".input_layernorm", eps,
                  {AddAttention(plan, prefix + ".self_attn", attention, attention_bias)}, 1));
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".post_attention_layernorm", eps,
                  {AddGateUpMlp(plan, prefix + ".mlp", intermediate, activation, mlp_bias)}, 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_llama;
const Family kFamily_llama = {
    "llama",
    "Llama 2 and 3: attention and MLP",
    {"LlamaForCausalLM"},
    Build,
};

}  // namespace adder
