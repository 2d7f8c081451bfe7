// Gemma 4's text model: attention in a window and to everything, with norms of q, k and v and norms
// after every part. Full attention has wider heads, which turn in part, and may use its keys as
// values; the last layers may attend to the keys of an earlier layer of their kind. Small models
// have inputs of their own for every layer, large ones experts beside each MLP. Files of the
// multimodal model hold the text model below another prefix; the rest is ignored.
#include <cmath>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"

namespace adder {
namespace {

struct Layer {
  bool full = false;    // attention to everything
  int64_t shares = -1;  // the layer whose keys and values it uses
};

struct Sizes {
  std::vector<Layer> layers;
  Attention window;
  Attention full;
  int64_t intermediate = 0;
  bool double_wide = false;  // of layers that share keys
  Activation activation = Activation::kGeluTanh;
  int64_t layer_input = 0;  // width; 0: none
  std::optional<MoeMlp> experts;
  float eps = 0;
};

std::vector<Layer> ReadLayers(const JsonObject& config, int64_t count) {
  std::vector<Layer> layers(static_cast<size_t>(count));
  std::vector<bool> full;
  if (config.Has("layer_types")) {
    full = ReadLayersOfType(config, "layer_types", count, "full_attention", "sliding_attention");
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].full = full.empty() ? (i + 1) % 6 == 0 : full[i];
  }
  // The reference makes the last layer attend to everything, whatever the config says.
  layers.back().full = true;
  const int64_t shared = config.Int({"num_kv_shared_layers"}, 0, count - 1, 0);
  for (int64_t i = count - shared; i < count; ++i) {
    Layer& layer = layers[static_cast<size_t>(i)];
    for (int64_t j = count - shared - 1; j >= 0 && layer.shares < 0; --j) {
      if (layers[static_cast<size_t>(j)].full == layer.full) layer.shares = j;
    }
    if (layer.shares < 0) {
      Fail(config.where(), ": the field num_kv_shared_layers is ", shared, ", but layer ", i,
           " has no earlier layer of its type to share keys with.");
    }
  }
  return layers;
}

// The rotary embedding of one layer type. "proportional" turns the first part of the pairs, with
// the frequencies they have among all pairs of the head.
Rope ReadLayerRope(const JsonObject& config, const char* type, int64_t head_dim,
                   double default_theta, const char* default_scaling, double default_partial) {
  const std::optional<JsonObject> all = config.Object({"rope_parameters"});
  const std::optional<JsonObject> own = all ? all->Object({type}) : std::nullopt;
  const Json empty = Json::object();
  const JsonObject parameters = own ? *own : JsonObject(empty, config.where());
  // What is left out of a stated object is not what a missing object means.
  const std::string scaling =
      parameters.String({"rope_type", "type"}, own ? "default" : default_scaling);
  if (scaling == "default") {
    return ReadRope(parameters, head_dim, std::nullopt, default_theta);
  }
  if (scaling != "proportional") {
    Fail(parameters.where(), ": the rope_type \"", scaling,
         "\" is not implemented for this family; \"default\" and \"proportional\" are.");
  }
  const double turned =
      ReadScale(parameters, {"partial_rotary_factor"}, own ? 1.0 : default_partial);
  // Written so that NaN fails.
  if (!(turned > 0 && turned <= 1)) {
    Fail(parameters.where(), ": the field partial_rotary_factor is ", turned,
         ", it should be above 0 and at most 1.");
  }
  Json whole = Json::object();
  whole["rope_theta"] = ReadScale(parameters, {"rope_theta"}, default_theta);
  Rope rope = ReadRope(JsonObject(whole, parameters.where()), head_dim);
  rope.scaling = scaling;
  const float factor = ReadInverseScale(parameters, {"factor"}, 1.0);
  const auto pairs = static_cast<size_t>(turned * static_cast<double>(head_dim) / 2);
  for (size_t i = 0; i < rope.inverse_frequencies.size(); ++i) {
    rope.inverse_frequencies[i] *= i < pairs ? factor : 0.0f;
  }
  return rope;
}

MoeMlp ReadExperts(const JsonObject& config, int64_t layers, Activation activation) {
  MoeMlp moe;
  moe.experts = config.Int({"num_experts"}, 1, kMaxExpertsInAll / layers);
  moe.top_k = config.Int({"top_k_experts"}, 1, moe.experts);
  moe.intermediate = ReadSize(config, {"moe_intermediate_size", "expert_intermediate_size"});
  moe.activation = activation;
  return moe;
}

// per_layer_config, which newer writers put in place of the fields that begin with "global": what
// differs from the rest of the config, by layer. Here all layers of full attention differ alike.
void ReadLayerOverrides(const JsonObject& overrides, const std::vector<Layer>& layers,
                        Attention& full) {
  std::vector<Json> by_layer(layers.size(), Json::object());
  for (const auto& [key, value] : overrides.value().items()) {
    const bool number =
        !key.empty() && key.size() < 6 && key.find_first_not_of("0123456789") == std::string::npos;
    const size_t layer = number ? std::stoul(key) : layers.size();
    if (layer >= layers.size()) {
      Fail(overrides.where(), ": \"", key, "\" is no number of a layer; the model has ",
           layers.size(), " layers.");
    }
    const JsonObject entry(value, Concat(overrides.where(), ": ", key));
    for (const auto& [field, setting] : entry.value().items()) {
      if (field != "head_dim" && field != "num_key_value_heads") {
        Fail(entry.where(), ": the field ", field,
             " is not implemented for one layer; head_dim and num_key_value_heads are.");
      }
    }
    by_layer[layer] = value;
  }
  const Json& of_full = by_layer.back();
  for (size_t i = 0; i < layers.size(); ++i) {
    if (by_layer[i] != (layers[i].full ? of_full : Json::object())) {
      Fail(overrides.where(), ": layer ", i, " has ", by_layer[i].dump(),
           "; only settings that all layers of full attention, and no others, have alike are "
           "implemented.");
    }
  }
  const JsonObject common(of_full, overrides.where());
  full.head_dim = common.Int({"head_dim"}, 1, kMaxHeadDim, full.head_dim);
  RequireMultiple(common, "head_dim", full.head_dim, "2", 2);
  full.kv_heads = ReadSize(common, {"num_key_value_heads"}, full.kv_heads);
  RequireMultiple(common, "num_attention_heads", full.heads, "num_key_value_heads", full.kv_heads);
}

// Both kinds of attention but for the rotary embedding of the full one.
void ReadAttentionKinds(const JsonObject& config, int64_t hidden, Sizes& sizes) {
  Attention& window = sizes.window;
  window = ReadAttentionSizes(config, hidden, 256);
  RequireMultiple(config, "head_dim", window.head_dim, "2", 2);
  window.scale = 1;
  window.window = ReadSize(config, {"sliding_window"}, 512);
  window.rope = ReadLayerRope(config, "sliding_attention", window.head_dim, 10000, "default", 1);
  Attention& full = sizes.full;
  full = window;
  full.window = 0;
  full.values_from_keys = config.Bool({"attention_k_eq_v"}, false);
  if (const std::optional<JsonObject> overrides = config.Object({"per_layer_config"})) {
    ReadLayerOverrides(*overrides, sizes.layers, full);
    return;
  }
  full.head_dim = config.Int({"global_head_dim"}, 1, kMaxHeadDim, 512);
  RequireMultiple(config, "global_head_dim", full.head_dim, "2", 2);
  if (full.values_from_keys) {
    full.kv_heads = ReadSize(config, {"num_global_key_value_heads"}, window.kv_heads);
    RequireMultiple(config, "num_attention_heads", full.heads, "num_global_key_value_heads",
                    full.kv_heads);
  }
}

Sizes ReadSizes(const JsonObject& config, int64_t hidden) {
  Sizes sizes;
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  sizes.layers = ReadLayers(config, layers);
  sizes.eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  if (config.String({"use_bidirectional_attention"}, "vision") != "vision") {
    Fail(config.where(),
         ": the field use_bidirectional_attention is \"all\"; only \"vision\" and "
         "null are implemented.");
  }
  RequireBool(config, "attention_bias", false);

  RequireRopesOfLayerTypes(config, {"sliding_attention", "full_attention"});
  ReadAttentionKinds(config, hidden, sizes);
  sizes.full.rope =
      ReadLayerRope(config, "full_attention", sizes.full.head_dim, 1e6, "proportional", 0.25);

  sizes.activation = ReadAnyActivation(config, {"hidden_activation"}, "gelu_pytorch_tanh");
  sizes.intermediate = config.Int({"intermediate_size"}, 1, kMaxSize / 2);
  sizes.double_wide = config.Bool({"use_double_wide_mlp"}, false);
  sizes.layer_input = config.Int({"hidden_size_per_layer_input"}, 0, kMaxSize / layers, 256);
  if (config.Bool({"enable_moe_block"}, false)) {
    sizes.experts = ReadExperts(config, layers, sizes.activation);
  }
  return sizes;
}

class Builder {
 public:
  Builder(Plan& plan, const Sizes& sizes, const TensorNames& names, std::string root)
      : plan_(plan), sizes_(sizes), names_(names), root_(std::move(root)) {}

  void AddLayerInputs() {
    LayerInputs inputs;
    inputs.parts = static_cast<int64_t>(sizes_.layers.size());
    inputs.width = sizes_.layer_input;
    const int64_t rows = inputs.parts * inputs.width;
    const std::string embedding = root_ + ".embed_tokens_per_layer";
    inputs.embedding = plan_.AddMatrix(LabelOf(embedding), embedding, plan_.vocab, rows);
    inputs.embedding_scale = std::sqrt(static_cast<float>(inputs.width));
    inputs.projection =
        AddLinear(plan_, root_ + ".per_layer_model_projection", rows, plan_.hidden, false);
    inputs.projection.input_scale = 1.0f / std::sqrt(static_cast<float>(plan_.hidden));
    inputs.norm = AddNorm(plan_, root_ + ".per_layer_projection_norm", inputs.width, sizes_.eps);
    inputs.scale = std::sqrt(0.5f);
    plan_.layer_inputs = inputs;
  }

  void AddLayer(int64_t index) {
    const Layer& layer = sizes_.layers[static_cast<size_t>(index)];
    prefix_ = root_ + ".layers." + std::to_string(index);
    attention_blocks_.push_back(static_cast<int64_t>(plan_.blocks.size()));
    Block block = MakeBlock(plan_, index, prefix_ + ".input_layernorm", sizes_.eps,
                            {AddLayerAttention(layer)}, 1);
    block.post_norm = Norm("post_attention_layernorm");
    plan_.blocks.push_back(std::move(block));

    const bool wide = sizes_.double_wide && layer.shares >= 0;
    block = MakeBlock(plan_, index, prefix_ + ".pre_feedforward_layernorm", sizes_.eps,
                      {AddGateUpMlp(plan_, prefix_ + ".mlp", (wide ? 2 : 1) * sizes_.intermediate,
                                    sizes_.activation, false)},
                      1);
    if (sizes_.experts) {
      block.mixers.push_back(AddLayerExperts());
      block.branch_norms = {
          {std::nullopt, Norm("post_feedforward_layernorm_1")},
          {Norm("pre_feedforward_layernorm_2"), Norm("post_feedforward_layernorm_2")}};
    }
    block.post_norm = Norm("post_feedforward_layernorm");
    plan_.blocks.push_back(std::move(block));

    if (sizes_.layer_input > 0) AddLayerInputBlock(index);
    plan_.blocks.back().rule.total =
        plan_.AddVector(LabelOf(prefix_) + ".layer_scalar", prefix_ + ".layer_scalar", 1);
  }

 private:
  RmsNorm Norm(const char* name) {
    return AddNorm(plan_, prefix_ + "." + name, plan_.hidden, sizes_.eps);
  }

  Attention AddLayerAttention(const Layer& layer) {
    Attention attention = layer.full ? sizes_.full : sizes_.window;
    const std::string prefix = prefix_ + ".self_attn";
    std::vector<StackedModule> modules{{"q_proj", attention.q_width()}};
    if (layer.shares >= 0) {
      attention.values_from_keys = false;
      attention.shared_kv_block = attention_blocks_[static_cast<size_t>(layer.shares)];
      // Files may hold the keys' weights all the same.
      for (const char* name : {".k_proj.*", ".v_proj.*", ".k_norm.*"}) {
        plan_.ignored_tensors.push_back(prefix + name);
      }
    } else {
      modules.push_back({"k_proj", attention.kv_width()});
      if (!attention.values_from_keys) modules.push_back({"v_proj", attention.kv_width()});
      attention.k_norm = AddNorm(plan_, prefix + ".k_norm", attention.head_dim, sizes_.eps);
      attention.v_norm = RmsNorm{kNoId, sizes_.eps, 1};
    }
    attention.qkv = AddStacked(plan_, prefix, "qkv", modules, plan_.hidden, false);
    attention.q_norm = AddNorm(plan_, prefix + ".q_norm", attention.head_dim, sizes_.eps);
    attention.output =
        AddLinear(plan_, prefix + ".o_proj", plan_.hidden, attention.q_width(), false);
    return attention;
  }

  MoeMlp AddLayerExperts() {
    MoeMlp moe = *sizes_.experts;
    const std::string router = prefix_ + ".router";
    moe.router = AddLinear(plan_, router + ".proj", moe.experts, plan_.hidden, false);
    moe.router.input_scale = 1.0f / std::sqrt(static_cast<float>(plan_.hidden));
    moe.router_norm =
        RmsNorm{plan_.AddVector(LabelOf(router) + ".scale", router + ".scale", plan_.hidden),
                sizes_.eps, 1};
    moe.routing.expert_scale = plan_.AddVector(LabelOf(router) + ".per_expert_scale",
                                               router + ".per_expert_scale", moe.experts);
    ExpertModules modules;
    modules.stacked = true;
    modules.prefix = prefix_ + ".experts";
    if (names_.Uses(modules.prefix + ".switch_glu.gate_proj.weight", true)) {
      modules.prefix += ".switch_glu";
      modules.inputs = {"gate_proj", "up_proj"};
    } else {
      modules.bare = true;
      modules.inputs = {"gate_up_proj"};
    }
    modules.down = "down_proj";
    AddExperts(plan_, LabelOf(prefix_), modules, moe);
    return moe;
  }

  void AddLayerInputBlock(int64_t index) {
    DenseMlp mlp;
    mlp.intermediate = sizes_.layer_input;
    mlp.activation = sizes_.activation;
    mlp.gated = false;
    mlp.layer_input = index;
    mlp.gate_up = AddLinear(plan_, prefix_ + ".per_layer_input_gate", sizes_.layer_input,
                            plan_.hidden, false);
    mlp.down = AddLinear(plan_, prefix_ + ".per_layer_projection", plan_.hidden, sizes_.layer_input,
                         false);
    Block block;
    block.layer = index;
    block.skip_pre_norm = true;
    block.mixers = {std::move(mlp)};
    block.post_norm = Norm("post_per_layer_input_norm");
    plan_.blocks.push_back(std::move(block));
  }

  Plan& plan_;
  const Sizes& sizes_;
  const TensorNames& names_;
  const std::string root_;
  std::string prefix_;                     // of the layer being added
  std::vector<int64_t> attention_blocks_;  // per layer
};

// What the text model's tensors begin with. Files of the multimodal model have their own way, in
// each of the two layouts.
std::string FindRoot(const TensorNames& names, bool multimodal) {
  if (multimodal && names.Uses("language_model.model.embed_tokens.weight", true)) {
    return "language_model.model";
  }
  if (multimodal && !names.HasOptional("model.embed_tokens.weight")) return "model.language_model";
  return "model";
}

Plan Build(const JsonObject& whole, const TensorNames& names) {
  const bool nested = whole.Has("text_config");
  const JsonObject config = ReadTextConfig(whole);
  Plan plan;
  plan.family = "gemma4";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 131072);
  plan.embedding_scale = std::sqrt(static_cast<float>(plan.hidden));
  if (config.Has("final_logit_softcapping")) {
    plan.logits_cap = ReadScale(config, {"final_logit_softcapping"}, 0.0);
    if (plan.logits_cap <= 0) {
      Fail(config.where(), ": the field final_logit_softcapping is ", plan.logits_cap,
           ", it should be positive.");
    }
  }
  const Sizes sizes = ReadSizes(config, plan.hidden);
  if (sizes.layer_input > 0) RequireInt(config, "vocab_size_per_layer_input", plan.vocab);

  const std::string root = FindRoot(names, nested);
  const JsonObject& tied_source = config.Has("tie_word_embeddings") ? config : whole;
  const bool tied = tied_source.Bool({"tie_word_embeddings"}, true);
  AddEmbeddingAndHead(plan, root + ".embed_tokens", root + ".norm", "lm_head", tied, sizes.eps);
  Builder builder(plan, sizes, names, root);
  if (sizes.layer_input > 0) builder.AddLayerInputs();
  for (size_t i = 0; i < sizes.layers.size(); ++i) builder.AddLayer(static_cast<int64_t>(i));
  if (nested) {
    for (const char* part : {"vision_tower.*", "audio_tower.*", "embed_vision.*", "embed_audio.*",
                             "vision_embedder.*", "multi_modal_projector.*"}) {
      plan.ignored_tensors.push_back(part);
      plan.ignored_tensors.push_back(std::string("model.") + part);
    }
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_gemma4;
const Family kFamily_gemma4 = {
    "gemma4",
    "Gemma 4 (text): attention in a window and in full, dense, with layer inputs, or with experts",
    {"Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"},
    Build,
    {"gemma4_text"},
};

}  // namespace adder
