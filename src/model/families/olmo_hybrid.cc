// OLMo Hybrid: layers of a gated delta rule whose factor of correction reaches 2, or attention with
// norms of q and k over all heads. Norms come before the delta rule and its MLP, but after
// attention and its MLP.
//
// Files of newer writers call the norms before a mixer attention_layer_norm and
// feedforward_layer_norm, and hold the three convolutions in equal thirds of all their channels,
// wherever q, k and v begin.
#include <cmath>

#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

std::vector<LayerKind> ReadKinds(const JsonObject& config, int64_t layers) {
  if (config.Has("layer_types")) {
    return ReadLayerTypes(config, {"layer_types"}, layers, LayerKind::kMamba);
  }
  std::vector<LayerKind> kinds;
  for (int64_t layer = 0; layer < layers; ++layer) {
    kinds.push_back(layer % 4 == 3 ? LayerKind::kAttention : LayerKind::kMamba);
  }
  // A model has attention, however few its layers.
  if (layers < 4) kinds.back() = LayerKind::kAttention;
  return kinds;
}

GatedDelta ReadDelta(const JsonObject& config, int64_t hidden) {
  GatedDelta delta;
  const int64_t attention_heads = ReadSize(config, {"num_attention_heads"});
  delta.key_heads = ReadSize(config, {"linear_num_key_heads"}, attention_heads);
  delta.value_heads = ReadSize(config, {"linear_num_value_heads"}, attention_heads);
  RequireMultiple(config, "linear_num_value_heads", delta.value_heads, "linear_num_key_heads",
                  delta.key_heads);
  // Three quarters of the hidden size are shared out among the heads.
  const int64_t default_key_dim = 3 * hidden / 4 / delta.key_heads;
  if (!config.Has("linear_key_head_dim") && default_key_dim < 1) {
    Fail(config.where(), ": without linear_key_head_dim, three quarters of hidden_size (", hidden,
         ") are too few for the ", delta.key_heads, " key heads.");
  }
  delta.key_dim = ReadSize(config, {"linear_key_head_dim"}, default_key_dim);
  delta.value_dim = ReadSize(config, {"linear_value_head_dim"}, 2 * delta.key_dim);
  delta.d_conv = config.Int({"linear_conv_kernel_dim"}, 1, 1024, 4);
  delta.query_scale = 1.0f / std::sqrt(static_cast<float>(delta.key_dim));
  delta.beta_scale = config.Bool({"linear_allow_neg_eigval"}, true) ? 2.0f : 1.0f;
  return delta;
}

// rope_parameters with a rope_theta of null mean no positions; without them, or without the field,
// the base is rope_theta or 10000.
std::optional<Rope> ReadOptionalRope(const JsonObject& config, int64_t head_dim) {
  if (const std::optional<JsonObject> parameters = config.Object({"rope_parameters"})) {
    const Json& value = parameters->value();
    if (value.contains("rope_theta") && value["rope_theta"].is_null()) return std::nullopt;
  }
  return ReadRope(config, head_dim);
}

VectorRef Convolution(const std::string& prefix, const GatedDelta& m, const TensorNames& names) {
  const Shape first = names.ShapeOf(prefix + ".q_conv1d.weight");
  const int64_t channels = m.conv_channels();
  const bool thirds = !first.empty() && channels % 3 == 0 && first[0] == channels / 3;
  VectorRef conv;
  conv.label = LabelOf(prefix) + ".conv1d";
  conv.transform = VectorTransform::kConvTimeMajor;
  for (const auto& [name, own] : {std::pair<const char*, int64_t>{".q_conv1d.weight", m.keys()},
                                  {".k_conv1d.weight", m.keys()},
                                  {".v_conv1d.weight", m.values()}}) {
    const int64_t rows = thirds ? channels / 3 : own;
    conv.parts.push_back({prefix + name, {{rows, 1, m.d_conv}, {rows, m.d_conv, 1}}});
  }
  return conv;
}

GatedDelta AddDelta(Plan& plan, const std::string& prefix, const GatedDelta& sizes,
                    const TensorNames& names) {
  GatedDelta delta = sizes;
  delta.in_proj = AddStacked(plan, prefix, "in_proj",
                             {{"q_proj", delta.keys()},
                              {"k_proj", delta.keys()},
                              {"v_proj", delta.values()},
                              {"b_proj", delta.value_heads},
                              {"a_proj", delta.value_heads},
                              {"g_proj", delta.values()}},
                             plan.hidden, false);
  delta.conv_weight = plan.AddVector(Convolution(prefix, delta, names));
  delta.dt_bias =
      plan.AddVector(LabelOf(prefix) + ".dt_bias", prefix + ".dt_bias", delta.value_heads);
  delta.a = plan.AddVector(LabelOf(prefix) + ".A_log", prefix + ".A_log", delta.value_heads,
                           VectorTransform::kNegativeExp);
  // Whatever rms_norm_eps says.
  delta.norm = AddNorm(plan, prefix + ".o_norm", delta.value_dim, 1e-5f);
  delta.out_proj = AddLinear(plan, prefix + ".o_proj", plan.hidden, delta.values(), false);
  return delta;
}

// A block with a norm behind its mixer alone.
Block PostNormed(Plan& plan, int64_t layer, const std::string& norm, float eps, Mixer mixer) {
  Block block;
  block.layer = layer;
  block.skip_pre_norm = true;
  block.mixers.push_back(std::move(mixer));
  block.post_norm = AddNorm(plan, norm, plan.hidden, eps);
  return block;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "olmo_hybrid";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 65536);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const bool attention_bias = config.Bool({"attention_bias"}, false);
  RequireBool(config, "linear_use_gate", true);
  const std::vector<LayerKind> kinds = ReadKinds(config, layers);
  const GatedDelta delta = ReadDelta(config, plan.hidden);
  Attention sizes = ReadAttentionSizes(config, plan.hidden);
  sizes.scale = 1.0f / std::sqrt(static_cast<float>(sizes.head_dim));
  sizes.rope = ReadOptionalRope(config, sizes.head_dim);

  const bool tied = config.Bool({"tie_word_embeddings"}, false);
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    const auto mlp = [&] {
      return AddGateUpMlp(plan, prefix + ".mlp", intermediate, activation, false);
    };
    if (kinds[static_cast<size_t>(layer)] == LayerKind::kAttention) {
      const std::string name = prefix + ".self_attn";
      Attention attention = AddAttention(plan, name, sizes, attention_bias);
      attention.q_norm = AddNorm(plan, name + ".q_norm", sizes.heads * sizes.head_dim, eps);
      attention.k_norm = AddNorm(plan, name + ".k_norm", sizes.kv_heads * sizes.head_dim, eps);
      plan.blocks.push_back(
          PostNormed(plan, layer, prefix + ".post_attention_layernorm", eps, attention));
      plan.blocks.push_back(
          PostNormed(plan, layer, prefix + ".post_feedforward_layernorm", eps, mlp()));
    } else {
      const bool renamed = names.HasOptional(prefix + ".attention_layer_norm.weight");
      plan.blocks.push_back(
          MakeBlock(plan, layer, prefix + (renamed ? ".attention_layer_norm" : ".input_layernorm"),
                    eps, {AddDelta(plan, prefix + ".linear_attn", delta, names)}, 1));
      plan.blocks.push_back(MakeBlock(
          plan, layer, prefix + (renamed ? ".feedforward_layer_norm" : ".post_attention_layernorm"),
          eps, {mlp()}, 1));
    }
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_olmo_hybrid;
const Family kFamily_olmo_hybrid = {
    "olmo_hybrid",
    "OLMo Hybrid: gated delta rule and attention, MLP",
    {"OlmoHybridForCausalLM"},
    Build,
};

}  // namespace adder
