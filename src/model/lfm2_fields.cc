#include "model/lfm2_fields.h"

#include <cmath>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"

namespace adder {
namespace {

constexpr double kDefaultTheta = 1e6;

// layer_types, or in the original configs full_attn_idxs; without both all layers are attention.
std::vector<bool> ReadLayers(const JsonObject& config, int64_t layers) {
  std::vector<bool> listed;
  if (config.Has("full_attn_idxs")) listed = ReadListedLayers(config, "full_attn_idxs", layers);
  if (!config.Has("layer_types")) {
    return listed.empty() ? std::vector<bool>(static_cast<size_t>(layers), true) : listed;
  }
  const std::vector<std::string> types = config.Strings({"layer_types"});
  if (static_cast<int64_t>(types.size()) != layers) {
    Fail(config.where(), ": the field layer_types has ", types.size(),
         " entries, but the model has ", layers, " layers.");
  }
  std::vector<bool> is_attention;
  for (const std::string& type : types) {
    if (type != "conv" && type != "full_attention") {
      Fail(config.where(), ": the field layer_types has the layer type \"", type,
           "\"; this family has \"conv\" and \"full_attention\".");
    }
    is_attention.push_back(type == "full_attention");
  }
  if (!listed.empty() && listed != is_attention) {
    Fail(config.where(), ": the fields layer_types and full_attn_idxs name different layers.");
  }
  return is_attention;
}

// The original configs call rope_theta theta.
Rope ReadLfm2Rope(const JsonObject& config, int64_t head_dim) {
  const double theta = config.Number({"theta"}, kDefaultTheta);
  const Rope rope = ReadRope(config, head_dim, std::nullopt, theta);
  if (config.Has("theta") && rope.theta != theta) {
    Fail(config.where(), ": the field theta is ", theta, ", but rope_theta is ", rope.theta, ".");
  }
  return rope;
}

ShortConv AddShortConv(Plan& plan, const std::string& prefix, int64_t d_conv, bool bias) {
  ShortConv conv;
  conv.channels = plan.hidden;
  conv.d_conv = d_conv;
  conv.in_proj = AddLinear(plan, prefix + ".in_proj", 3 * plan.hidden, plan.hidden, bias);
  const std::string label = LabelOf(prefix) + ".conv";
  // Hugging Face files have the taps last, MLX files the single input channel.
  conv.conv_weight = plan.AddVector(VectorRef{
      label,
      {VectorPart{prefix + ".conv.weight", {{plan.hidden, 1, d_conv}, {plan.hidden, d_conv, 1}}}},
      VectorTransform::kConvTimeMajor});
  if (bias) {
    conv.conv_bias = plan.AddVector(label + " bias", prefix + ".conv.bias", plan.hidden);
  }
  conv.out_proj = AddLinear(plan, prefix + ".out_proj", plan.hidden, plan.hidden, bias);
  return conv;
}

// The heads of q and k are normed one by one, all with the same weight.
Attention AddNormedAttention(Plan& plan, const std::string& prefix, const Attention& sizes,
                             float eps) {
  Attention attention = sizes;
  const int64_t q_rows = sizes.heads * sizes.head_dim;
  const int64_t kv_rows = sizes.kv_heads * sizes.head_dim;
  attention.qkv = AddStacked(plan, prefix, "qkv",
                             {{"q_proj", q_rows}, {"k_proj", kv_rows}, {"v_proj", kv_rows}},
                             plan.hidden, false);
  attention.q_norm = AddNorm(plan, prefix + ".q_layernorm", sizes.head_dim, eps);
  attention.k_norm = AddNorm(plan, prefix + ".k_layernorm", sizes.head_dim, eps);
  attention.output = AddLinear(plan, prefix + ".out_proj", plan.hidden, q_rows, false);
  return attention;
}

}  // namespace

Lfm2Layers StartLfm2(const JsonObject& config, const TensorNames& names, Plan& plan) {
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 128000);
  const int64_t count = ReadLayerCount(config, {"num_hidden_layers"});
  Lfm2Layers layers;
  layers.is_attention = ReadLayers(config, count);
  layers.eps = ReadEps(config, {"norm_eps"}, 1e-5);
  layers.d_conv = config.Int({"conv_L_cache"}, 1, 1024, 3);
  layers.conv_bias = config.Bool({"conv_bias"}, false);
  // Widths that a convolution of its own size would have.
  for (const char* width : {"conv_dim", "conv_dim_out", "block_dim"}) {
    RequireInt(config, width, plan.hidden);
  }
  RequireBool(config, "use_pos_enc", true);

  layers.attention = ReadAttentionSizes(config, plan.hidden);
  RequireInt(config, "num_heads", layers.attention.heads);
  layers.attention.scale = 1.0f / std::sqrt(static_cast<float>(layers.attention.head_dim));
  layers.attention.rope = ReadLfm2Rope(config, layers.attention.head_dim);

  const bool tied =
      ReadTied(config, {"tie_embedding", "tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.embedding_norm", "lm_head", tied,
                      layers.eps);
  return layers;
}

void AddLfm2Mixer(Plan& plan, const Lfm2Layers& layers, int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer);
  Mixer mixer;
  if (layers.is_attention[static_cast<size_t>(layer)]) {
    mixer = AddNormedAttention(plan, prefix + ".self_attn", layers.attention, layers.eps);
  } else {
    mixer = AddShortConv(plan, prefix + ".conv", layers.d_conv, layers.conv_bias);
  }
  plan.blocks.push_back(
      MakeBlock(plan, layer, prefix + ".operator_norm", layers.eps, {std::move(mixer)}, 1));
}

DenseMlp AddLfm2Mlp(Plan& plan, bool gate_names, const std::string& prefix, int64_t intermediate) {
  if (gate_names) {
    return AddGateUpMlp(plan, prefix, intermediate, Activation::kSilu, false);
  }
  DenseMlp mlp;
  mlp.intermediate = intermediate;
  mlp.gate_up = AddStacked(plan, prefix, "gate_up", {{"w1", intermediate}, {"w3", intermediate}},
                           plan.hidden, false);
  mlp.down = AddLinear(plan, prefix + ".w2", plan.hidden, intermediate, false);
  return mlp;
}

}  // namespace adder
