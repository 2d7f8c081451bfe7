// Hunyuan, dense: Llama's layers with a norm of every head's q and k after the rotary embedding,
// whose base alpha stretches. Hugging Face and MLX files use the same names.
#include <cmath>

#include "model/family_fields.h"

namespace adder {
namespace {

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "hunyuan_v1_dense";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 2048);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-5);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const HunyuanAttention hunyuan = ReadHunyuanAttention(config, plan.hidden);

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".input_layernorm", eps,
                  {AddHunyuanAttention(plan, prefix + ".self_attn", hunyuan, eps)}, 1));
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".post_attention_layernorm", eps,
                  {AddGateUpMlp(plan, prefix + ".mlp", intermediate, activation, false)}, 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_hunyuan_v1_dense;
const Family kFamily_hunyuan_v1_dense = {
    "hunyuan_v1_dense",
    "Hunyuan dense: attention with heads normed after the rotation, and MLP",
    {"HunYuanDenseV1ForCausalLM"},
    Build,
};

}  // namespace adder
