// ZAYA: attention whose q, k and v are mixed by convolutions, and experts behind a router with an
// MLP whose hidden state goes on to the next layer's router. A token may choose no expert. Residual
// and results are scaled per channel before they are added.
#include <cmath>
#include <limits>

#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// Which layers attend in a window.
std::vector<bool> ReadWindowLayers(const JsonObject& config, int64_t layers) {
  if (!config.Has("layer_types")) return std::vector<bool>(static_cast<size_t>(layers), false);
  return ReadLayersOfType(config, "layer_types", layers, "hybrid_sliding", "hybrid");
}

// The rotary embedding of one layer type.
Rope ReadLayerRope(const JsonObject& config, const char* type, int64_t head_dim,
                   double default_theta) {
  const std::optional<JsonObject> all = config.Object({"rope_parameters"});
  const std::optional<JsonObject> own = all ? all->Object({type}) : std::nullopt;
  if (!own) {
    const Json none = Json::object();
    return ReadRope(JsonObject(none, config.where()), head_dim, 0.5, default_theta);
  }
  RequireString(*own, "rope_type", "default");
  RequireString(*own, "type", "default");
  return ReadRope(*own, head_dim, 1.0, default_theta);
}

Attention ReadAttention(const JsonObject& config, int64_t hidden) {
  RequireBool(config, "attention_bias", false);
  Attention attention = ReadAttentionSizes(config, hidden);
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  if (attention.kv_width() % 2 != 0) {
    Fail(config.where(), ": num_key_value_heads x head_dim is ", attention.kv_width(),
         "; it should be even.");
  }
  HeadMixing mixing;
  mixing.taps = config.Int({"cca_time0"}, 1, 1024, 2);
  mixing.group_taps = config.Int({"cca_time1"}, 1, 1024, 2);
  attention.mixing = mixing;
  return attention;
}

// Sets the weights of `attention`, whose sizes are set.
void AddMixedAttention(Plan& plan, const std::string& prefix, Attention& attention) {
  const std::string projections = prefix + ".qkv_proj";
  const std::string label = LabelOf(projections);
  const int64_t half = attention.kv_width() / 2;
  const int64_t channels = attention.q_width() + attention.kv_width();
  attention.qkv = AddStacked(plan, projections, "qkv",
                             {{"q_proj", attention.q_width()},
                              {"k_proj", attention.kv_width()},
                              {"v_proj_current", half},
                              {"v_proj_delayed", half}},
                             plan.hidden, false);
  HeadMixing& mixing = *attention.mixing;
  const std::string depthwise = projections + ".conv_qk_depthwise";
  mixing.conv_weight = plan.AddVector(VectorRef{
      label + ".conv_qk_depthwise",
      {VectorPart{depthwise + ".weight", {{channels, 1, mixing.taps}, {channels, mixing.taps, 1}}}},
      VectorTransform::kConvTimeMajor});
  mixing.conv_bias =
      plan.AddVector(label + ".conv_qk_depthwise bias", depthwise + ".bias", channels);
  const std::string grouped = projections + ".conv_qk_grouped";
  mixing.group_weight = plan.AddVector(VectorRef{
      label + ".conv_qk_grouped",
      {VectorPart{grouped + ".weight", {{channels, attention.head_dim, mixing.group_taps}}}},
      VectorTransform::kGroupedConvTimeMajor});
  mixing.group_bias = plan.AddVector(label + ".conv_qk_grouped bias", grouped + ".bias", channels);
  // Heads are scaled to the length sqrt(head_dim): an RMSNorm, whose eps stands for the smallest
  // length that the reference divides by.
  const float smallest = std::numeric_limits<float>::epsilon();
  const float eps = smallest * smallest / static_cast<float>(attention.head_dim);
  attention.q_norm = RmsNorm{kNoId, eps, 1};
  VectorRef temperature{LabelOf(prefix) + ".qk_norm.temp",
                        {VectorPart{prefix + ".qk_norm.temp", {Shape{attention.kv_heads}}}}};
  temperature.repeat = attention.head_dim;
  attention.k_norm = RmsNorm{plan.AddVector(std::move(temperature)), eps, attention.kv_heads};
  attention.output = AddLinear(plan, prefix + ".o_proj", plan.hidden, attention.q_width(), false);
}

// What becomes of the residual after a part of a layer.
ResidualRule AddRule(Plan& plan, const std::string& prefix) {
  const auto vector = [&](const char* name) {
    return plan.AddVector(LabelOf(prefix) + "." + name, prefix + "." + name, plan.hidden);
  };
  ResidualRule rule;
  rule.keep_bias = vector("residual_bias");
  rule.keep_scale = vector("residual_scale");
  rule.add_bias = vector("hidden_states_bias");
  rule.add_scale = vector("hidden_states_scale");
  return rule;
}

// A projection of a router, which no layout has in a quantised form: an error in it picks other
// experts.
Linear AddRouterLinear(Plan& plan, const std::string& prefix, int64_t rows, int64_t cols,
                       bool bias) {
  const Linear linear = AddLinear(plan, prefix, rows, cols, bias);
  plan.matrices[static_cast<size_t>(linear.weight)].always_float = true;
  return linear;
}

struct Experts {
  MoeMlp moe;
  int64_t router_width = 0;
};

Experts ReadExperts(const JsonObject& config, int64_t layers) {
  Experts read;
  MoeMlp& moe = read.moe;
  moe.experts = config.Int({"num_experts", "num_local_experts"}, 1, kMaxExpertsInAll / layers);
  RequireInt(config, "num_experts_per_tok", 1);
  moe.top_k = 1;
  moe.intermediate = ReadSize(config, {"moe_intermediate_size"}, 2048);
  moe.activation = ReadActivation(config, {"hidden_act"});
  moe.routing.normalize = false;
  moe.routing.idle = 1;
  read.router_width = ReadSize(config, {"router_hidden_size"}, 256);
  return read;
}

MoeMlp AddLayerExperts(Plan& plan, const std::string& prefix, const Experts& sizes, bool first,
                       float eps, const TensorNames& names) {
  MoeMlp moe = sizes.moe;
  const std::string gate = prefix + ".gate";
  const int64_t width = sizes.router_width;
  RouterMlp mlp;
  mlp.width = width;
  mlp.down = AddRouterLinear(plan, gate + ".down_proj", width, plan.hidden, true);
  if (!first) {
    mlp.carried_scale = plan.AddVector(LabelOf(gate) + ".router_states_scale",
                                       gate + ".router_states_scale", width);
  }
  mlp.norm = AddNorm(plan, gate + ".router_mlp.norm", width, eps);
  mlp.fc1 = AddRouterLinear(plan, gate + ".router_mlp.fc1", width, width, true);
  mlp.fc2 = AddRouterLinear(plan, gate + ".router_mlp.fc2", width, width, true);
  moe.router_mlp = std::move(mlp);
  const int64_t classes = moe.experts + moe.routing.idle;
  moe.router = AddRouterLinear(plan, gate + ".router_mlp.out_proj", classes, width, false);
  VectorRef biases{LabelOf(gate) + ".balancing_biases",
                   {VectorPart{gate + ".balancing_biases", {Shape{classes}}}}};
  // The reference sets the bias of the idle choice when it loads a file.
  biases.last = -1.0f;
  moe.routing.choice_bias = plan.AddVector(std::move(biases));
  ExpertModules modules;
  modules.stacked = true;
  if (names.Uses(prefix + ".switch_mlp.gate_proj.weight", true)) {
    modules.prefix = prefix + ".switch_mlp";
    modules.inputs = {"gate_proj", "up_proj"};
  } else {
    modules.prefix = prefix + ".experts";
    modules.bare = true;
    modules.inputs = {"gate_up_proj"};
  }
  modules.down = "down_proj";
  AddExperts(plan, LabelOf(prefix), modules, moe);
  return moe;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "zaya";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 131072);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const std::vector<bool> windowed = ReadWindowLayers(config, layers);
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-5);
  const Experts experts = ReadExperts(config, layers);
  RequireRopesOfLayerTypes(config, {"hybrid", "hybrid_sliding"});
  Attention full = ReadAttention(config, plan.hidden);
  Attention window = full;
  full.rope = ReadLayerRope(config, "hybrid", full.head_dim, 5e6);
  window.rope = ReadLayerRope(config, "hybrid_sliding", full.head_dim, 10000);
  for (const bool needed : windowed) {
    if (needed) window.window = ReadSize(config, {"sliding_window"});
  }

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  if (config.Bool({"lm_head_bias"}, false)) {
    // Not part of what a tied file stores a second time.
    if (tied) plan.ignored_tensors.back() = "lm_head.weight";
    plan.head.bias = plan.AddVector("lm_head.bias", "lm_head.bias", plan.vocab);
  }
  plan.embedding_bias =
      plan.AddVector("input_hidden_states_bias", "model.input_hidden_states_bias", plan.hidden);
  plan.embedding_factor =
      plan.AddVector("input_hidden_states_scale", "model.input_hidden_states_scale", plan.hidden);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    Attention attention = windowed[static_cast<size_t>(layer)] ? window : full;
    AddMixedAttention(plan, prefix + ".self_attn", attention);
    Block block =
        MakeBlock(plan, layer, prefix + ".input_layernorm", eps, {std::move(attention)}, 1);
    block.rule = AddRule(plan, prefix + ".post_attention_residual_scale");
    plan.blocks.push_back(std::move(block));
    block = MakeBlock(plan, layer, prefix + ".post_attention_layernorm", eps,
                      {AddLayerExperts(plan, prefix + ".mlp", experts, layer == 0, eps, names)}, 1);
    block.rule = AddRule(plan, prefix + ".post_mlp_residual_scale");
    plan.blocks.push_back(std::move(block));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_zaya;
const Family kFamily_zaya = {
    "zaya",
    "ZAYA: attention with mixed heads, and experts behind routers that pass on their state",
    {"ZayaForCausalLM"},
    Build,
};

}  // namespace adder
