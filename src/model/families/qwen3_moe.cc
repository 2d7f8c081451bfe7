// Qwen3 with a mixture of experts in most layers: softmax over all experts, of which the chosen
// ones' weights are normalised when norm_topk_prob says so. Layers in mlp_only_layers, and those
// that decoder_sparse_step leaves out, have one MLP.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// The window of attention in all layers, 0 without one.
int64_t ReadWindow(const JsonObject& config, int64_t layers) {
  const int64_t window = ReadSwitchedWindow(config);
  // Implementations of different years differ in whether the first layers lack the window.
  if (window > 0) RequireInt(config, "max_window_layers", 0);
  for (const bool slides : ReadSlidingLayers(config, layers)) {
    if (!config.Has("layer_types") || slides == (window > 0)) continue;
    Fail(config.where(), ": the field layer_types has a \"",
         slides ? "sliding_attention" : "full_attention", "\" layer, but use_sliding_window ",
         window > 0 ? "gives all layers a window." : "gives no layer a window.");
  }
  return window;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "qwen3_moe";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 32768);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const bool attention_bias = config.Bool({"attention_bias"}, false);
  const int64_t window = ReadWindow(config, layers);

  const std::vector<bool> sparse = ReadExpertLayers(config, layers);
  const bool any_dense = std::find(sparse.begin(), sparse.end(), false) != sparse.end();
  const int64_t intermediate = any_dense ? ReadSize(config, {"intermediate_size"}) : 0;
  MoeMlp experts;
  experts.experts = config.Int({"num_experts", "num_local_experts"}, 1, kMaxExpertsInAll / layers);
  experts.top_k = config.Int({"num_experts_per_tok"}, 1, experts.experts);
  experts.intermediate = ReadSize(config, {"moe_intermediate_size"});
  experts.activation = activation;
  experts.routing.normalize = config.Bool({"norm_topk_prob"}, false);

  Attention sizes = ReadAttentionSizes(config, plan.hidden);
  sizes.scale = 1.0f / std::sqrt(static_cast<float>(sizes.head_dim));
  sizes.rope = ReadRope(config, sizes.head_dim);
  sizes.window = window;

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    Attention attention = AddAttention(plan, prefix + ".self_attn", sizes, attention_bias);
    AddHeadNorms(plan, prefix + ".self_attn", "q_norm", "k_norm", eps, attention);
    plan.blocks.push_back(MakeBlock(plan, layer, prefix + ".input_layernorm", eps, {attention}, 1));
    Mixer mlp;
    if (sparse[static_cast<size_t>(layer)]) {
      MoeMlp moe = experts;
      moe.router = AddLinear(plan, prefix + ".mlp.gate", moe.experts, plan.hidden, false);
      AddGateUpExperts(plan, prefix + ".mlp", names, moe);
      mlp = std::move(moe);
    } else {
      mlp = AddGateUpMlp(plan, prefix + ".mlp", intermediate, activation, false);
    }
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".post_attention_layernorm", eps, {std::move(mlp)}, 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_qwen3_moe;
const Family kFamily_qwen3_moe = {
    "qwen3_moe",
    "Qwen3 with a mixture of experts",
    {"Qwen3MoeForCausalLM"},
    Build,
};

}  // namespace adder
