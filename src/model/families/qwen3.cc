// Qwen3: Llama's layers with a norm of every head's q and k before the rotary embedding.
// Hugging Face and MLX files use the same names.
#include <cmath>

#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// The window of each layer's attention, 0 without one: sliding_window in the layers that
// layer_types names, else in those from max_window_layers on. use_sliding_window has to switch it
// on.
std::vector<int64_t> ReadQwenWindows(const JsonObject& config, int64_t layers) {
  const int64_t window = ReadSwitchedWindow(config);
  std::vector<bool> sliding = ReadSlidingLayers(config, layers);
  if (window > 0 && !config.Has("layer_types")) {
    const int64_t first = config.Int({"max_window_layers"}, 0, kMaxSize, 28);
    for (int64_t layer = first; layer < layers; ++layer) sliding[static_cast<size_t>(layer)] = true;
  }
  std::vector<int64_t> windows;
  for (const bool slides : sliding) {
    if (slides && window == 0) {
      Fail(
          config.where(),
          ": the field layer_types has \"sliding_attention\" layers, but use_sliding_window is not "
          "true, or sliding_window is null.");
    }
    windows.push_back(slides ? window : 0);
  }
  return windows;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "qwen3";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 32768);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const bool attention_bias = config.Bool({"attention_bias"}, false);
  const std::vector<int64_t> windows = ReadQwenWindows(config, layers);

  Attention sizes = ReadAttentionSizes(config, plan.hidden, 128);
  sizes.scale = 1.0f / std::sqrt(static_cast<float>(sizes.head_dim));
  sizes.rope = ReadRope(config, sizes.head_dim);

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    sizes.window = windows[static_cast<size_t>(layer)];
    Attention attention = AddAttention(plan, prefix + ".self_attn", sizes, attention_bias);
    AddHeadNorms(plan, prefix + ".self_attn", "q_norm", "k_norm", eps, attention);
    plan.blocks.push_back(MakeBlock(plan, layer, prefix + ".input_layernorm", eps, {attention}, 1));
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".post_attention_layernorm", eps,
                  {AddGateUpMlp(plan, prefix + ".mlp", intermediate, activation, false)}, 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_qwen3;
const Family kFamily_qwen3 = {
    "qwen3",
    "Qwen3: attention with normed heads, and MLP",
    {"Qwen3ForCausalLM"},
    Build,
};

}  // namespace adder
