// RecurrentGemma (Griffin): layers of the real-gated linear recurrent unit or attention over a
// window, each followed by an MLP half as wide as intermediate_size says.
//
// Hugging Face and MLX files use the same names, and norms store w with (1 + w) applied in both.
#include <cmath>

#include "core/dtype.h"
#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// block_types repeat over the layers; in some files the field has an underscore.
std::vector<LayerKind> ReadKinds(const JsonObject& config, int64_t layers) {
  std::vector<std::string> types{"recurrent", "recurrent", "attention"};
  if (config.Find({"_block_types", "block_types"}) != nullptr) {
    types = config.Strings({"_block_types", "block_types"});
  }
  if (types.empty()) {
    Fail(config.where(), ": the field _block_types / block_types is empty.");
  }
  if (config.Has("block_types") && config.Strings({"block_types"}) != types) {
    Fail(config.where(), ": the fields _block_types and block_types differ.");
  }
  std::vector<LayerKind> kinds;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string& type = types[static_cast<size_t>(layer) % types.size()];
    if (type != "recurrent" && type != "attention") {
      Fail(config.where(), ": the field _block_types / block_types has the entry \"", type,
           "\"; \"recurrent\" and \"attention\" are known.");
    }
    kinds.push_back(type == "recurrent" ? LayerKind::kMamba : LayerKind::kAttention);
  }
  return kinds;
}

RgLru AddRecurrence(Plan& plan, const std::string& prefix, const RgLru& sizes) {
  RgLru lru = sizes;
  const std::string label = LabelOf(prefix);
  const int64_t width = lru.width;
  const Shape blocks{lru.heads, lru.block(), lru.block()};
  lru.in_proj = AddStacked(plan, prefix, "in_proj", {{"linear_x", width}, {"linear_y", width}},
                           plan.hidden, true);
  lru.conv_weight = plan.AddVector(VectorRef{
      label + ".conv_1d",
      {VectorPart{prefix + ".conv_1d.weight", {{width, 1, lru.d_conv}, {width, lru.d_conv, 1}}}},
      VectorTransform::kConvTimeMajor});
  lru.conv_bias = plan.AddVector(label + ".conv_1d bias", prefix + ".conv_1d.bias", width);
  const auto vector = [&](const std::string& name, Shape shape) {
    return plan.AddVector(VectorRef{label + ".rg_lru." + name,
                                    {VectorPart{prefix + ".rg_lru." + name, {std::move(shape)}}}});
  };
  lru.input_weight = vector("input_gate_weight", blocks);
  lru.input_bias = vector("input_gate_bias", {lru.heads, lru.block()});
  lru.recurrent_weight = vector("recurrent_gate_weight", blocks);
  lru.recurrent_bias = vector("recurrent_gate_bias", {lru.heads, lru.block()});
  lru.decay = vector("recurrent_param", {width});
  lru.out_proj = AddLinear(plan, prefix + ".linear_out", plan.hidden, width, true);
  return lru;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "recurrent_gemma";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t doubled = ReadSize(config, {"intermediate_size"});
  RequireMultiple(config, "intermediate_size", doubled, "2", 2);
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  const Activation activation =
      ReadAnyActivation(config, {"hidden_activation"}, "gelu_pytorch_tanh");
  plan.logits_cap = ReadScale(config, {"logits_soft_cap"}, 30.0);
  if (!(plan.logits_cap >= 0)) {
    Fail(config.where(), ": the field logits_soft_cap is ", plan.logits_cap, ", below 0.");
  }
  const std::vector<LayerKind> kinds = ReadKinds(config, layers);
  if (config.Bool({"embeddings_scale_by_sqrt_dim"}, true)) {
    // Rounded to bf16, as the reference keeps it.
    plan.embedding_scale = BF16ToFloat(FloatToBF16(std::sqrt(static_cast<float>(plan.hidden))));
  }

  Attention sizes = ReadAttentionSizes(config, plan.hidden);
  sizes.scale = 1.0f / std::sqrt(static_cast<float>(sizes.head_dim));
  sizes.rope = ReadRope(config, sizes.head_dim, 0.5);
  RequireSame(config, {"attention_window_size", "sliding_window"});
  sizes.window = ReadSize(config, {"attention_window_size", "sliding_window"}, 2048);
  const bool attention_bias = config.Bool({"attention_bias"}, false);

  RgLru lru;
  lru.width = ReadSize(config, {"lru_width"}, plan.hidden);
  lru.heads = sizes.heads;
  RequireMultiple(config, "lru_width", lru.width, "num_attention_heads", lru.heads);
  lru.d_conv = config.Int({"conv1d_width"}, 1, 1024, 4);

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.final_norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    const std::string temporal = prefix + ".temporal_block";
    Mixer mixer;
    if (kinds[static_cast<size_t>(layer)] == LayerKind::kMamba) {
      mixer = AddRecurrence(plan, temporal, lru);
    } else {
      Attention attention = AddAttention(plan, temporal, sizes, attention_bias);
      // The output has a bias whatever attention_bias says.
      if (!attention_bias) {
        attention.output.bias = plan.AddVector(LabelOf(temporal) + ".o_proj bias",
                                               temporal + ".o_proj.bias", plan.hidden);
      }
      mixer = attention;
    }
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".temporal_pre_norm", eps, {std::move(mixer)}, 1));
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".channel_pre_norm", eps,
                  {AddGateUpMlp(plan, prefix + ".mlp_block", doubled / 2, activation, true)}, 1));
  }
  AddOneToNorms(plan);
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_recurrent_gemma;
const Family kFamily_recurrent_gemma = {
    "recurrent_gemma",
    "RecurrentGemma: RG-LRU and attention over a window, MLP",
    {"RecurrentGemmaForCausalLM"},
    Build,
};

}  // namespace adder
