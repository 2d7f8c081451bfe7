// Granite 3: Llama's layers with four multipliers (embedding, attention, residual, logits).
// Hugging Face and MLX files use the same names.
#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// No implementation of this family has windows, whatever the config says.
void RequireNoWindows(const JsonObject& config, int64_t layers, int64_t max_positions) {
  for (const int64_t window : ReadWindows(config, layers, max_positions)) {
    if (window == 0) continue;
    Fail(config.where(),
         ": the field layer_types has \"sliding_attention\" layers; only \"full_attention\" is "
         "implemented for this family.");
  }
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "granite";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 2048);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const bool attention_bias = config.Bool({"attention_bias"}, false);
  const bool mlp_bias = config.Bool({"mlp_bias"}, false);

  plan.embedding_scale = ReadScale(config, {"embedding_multiplier"}, 1.0);
  plan.logits_scale = ReadInverseScale(config, {"logits_scaling"}, 1.0);
  const float residual_scale = ReadScale(config, {"residual_multiplier"}, 1.0);
  Attention attention = ReadAttentionSizes(config, plan.hidden);
  attention.scale = ReadScale(config, {"attention_multiplier"}, 1.0);
  attention.rope = ReadRope(config, attention.head_dim);
  RequireNoWindows(config, layers, plan.max_positions);

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    plan.blocks.push_back(MakeBlock(
        plan, layer, prefix + ".input_layernorm", eps,
        {AddAttention(plan, prefix + ".self_attn", attention, attention_bias)}, residual_scale));
    plan.blocks.push_back(MakeBlock(
        plan, layer, prefix + ".post_attention_layernorm", eps,
        {AddGateUpMlp(plan, prefix + ".mlp", intermediate, activation, mlp_bias)}, residual_scale));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_granite;
const Family kFamily_granite = {
    "granite",
    "Granite 3: attention and MLP with multipliers",
    {"GraniteForCausalLM"},
    Build,
};

}  // namespace adder
