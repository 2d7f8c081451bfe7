// Kimi Linear: layers of Kimi Delta Attention (a gated delta rule with a decay per channel) or
// latent attention without positions, and experts with sigmoid scores after the dense first layers.
//
// Hugging Face files hold block_sparse_moe.experts.N.{w1,w3,w2} and {q,k,v}_conv1d, MLX files
// mlp.switch_mlp.{gate,up,down}_proj and {q,k,v}_conv.conv.
//
// Configs have the original code's field names, mostly stated in full, or transformers' own; a
// field that is missing means transformers' default.
#include <cmath>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"
#include "model/latent_attention_fields.h"

namespace adder {
namespace {

// linear_attn_config names both kinds of layers, counted from 1.
std::vector<LayerKind> ReadListedKinds(const JsonObject& linear, int64_t layers) {
  const std::vector<bool> delta = ReadListedLayers(linear, "kda_layers", layers, 1);
  const std::vector<bool> attention = ReadListedLayers(linear, "full_attn_layers", layers, 1);
  std::vector<LayerKind> kinds;
  for (size_t layer = 0; layer < delta.size(); ++layer) {
    if (delta[layer] == attention[layer]) {
      Fail(linear.where(), ": the fields kda_layers and full_attn_layers should name layer ",
           layer + 1, " once in all.");
    }
    kinds.push_back(delta[layer] ? LayerKind::kMamba : LayerKind::kAttention);
  }
  return kinds;
}

// The kinds that linear_attn_config lists or layer_types names; without both, every fourth layer
// after the first has latent attention.
std::vector<LayerKind> ReadKinds(const JsonObject& config, const std::optional<JsonObject>& linear,
                                 int64_t layers) {
  const bool listed = linear && linear->Find({"kda_layers", "full_attn_layers"}) != nullptr;
  if (config.Has("layer_types")) {
    std::vector<LayerKind> kinds =
        ReadLayerTypes(config, {"layer_types"}, layers, LayerKind::kMamba);
    if (listed && kinds != ReadListedKinds(*linear, layers)) {
      Fail(config.where(),
           ": the field layer_types and the lists of linear_attn_config name "
           "different layers.");
    }
    return kinds;
  }
  if (listed) return ReadListedKinds(*linear, layers);
  std::vector<LayerKind> kinds;
  for (int64_t layer = 0; layer < layers; ++layer) {
    kinds.push_back(layer > 0 && layer % 4 == 0 ? LayerKind::kAttention : LayerKind::kMamba);
  }
  return kinds;
}

// A size that `linear`, which is linear_attn_config, or the config itself has, each by its name.
int64_t ReadLinearSize(const JsonObject& config, const std::optional<JsonObject>& linear,
                       const char* listed_key, const char* key, int64_t max,
                       int64_t default_value) {
  const int64_t own = config.Int({key}, 1, max, default_value);
  if (!linear || !linear->Has(listed_key)) return own;
  const int64_t size = linear->Int({listed_key}, 1, max);
  if (config.Has(key) && own != size) {
    Fail(config.where(), ": the field ", key, " is ", own, ", but linear_attn_config has ",
         listed_key, " ", size, "; they should say the same.");
  }
  return size;
}

struct DeltaSizes {
  GatedDelta mixer;
  int64_t rank = 0;  // of the projections of decay and gate
};

DeltaSizes ReadDelta(const JsonObject& config, const std::optional<JsonObject>& linear) {
  DeltaSizes sizes;
  GatedDelta& delta = sizes.mixer;
  delta.key_heads = ReadLinearSize(config, linear, "num_heads", "linear_num_heads", kMaxSize, 32);
  delta.value_heads = delta.key_heads;
  delta.key_dim = ReadLinearSize(config, linear, "head_dim", "linear_head_dim", kMaxSize, 128);
  delta.value_dim = delta.key_dim;
  sizes.rank = delta.key_dim;
  delta.d_conv =
      ReadLinearSize(config, linear, "short_conv_kernel_size", "linear_conv_kernel_dim", 1024, 4);
  delta.decay_per_channel = true;
  delta.query_scale = 1.0f / std::sqrt(static_cast<float>(delta.key_dim));
  delta.gate_activation = Activation::kSigmoid;
  return sizes;
}

GatedDelta AddDelta(Plan& plan, const std::string& prefix, const DeltaSizes& sizes, float eps,
                    const TensorNames& names) {
  GatedDelta delta = sizes.mixer;
  const std::string label = LabelOf(prefix);
  delta.in_proj = AddStacked(plan, prefix, "in_proj",
                             {{"q_proj", delta.keys()},
                              {"k_proj", delta.keys()},
                              {"v_proj", delta.values()},
                              {"b_proj", delta.value_heads}},
                             plan.hidden, false);
  const bool mlx = names.Uses(prefix + ".q_conv.conv.weight", true);
  VectorRef conv;
  conv.label = label + ".conv1d";
  conv.transform = VectorTransform::kConvTimeMajor;
  for (const char* name : {"q", "k", "v"}) {
    conv.parts.push_back({Concat(prefix, ".", name, mlx ? "_conv.conv.weight" : "_conv1d.weight"),
                          {{delta.keys(), 1, delta.d_conv}, {delta.keys(), delta.d_conv, 1}}});
  }
  delta.conv_weight = plan.AddVector(std::move(conv));
  const auto low_rank = [&](const std::string& name, int64_t rows) {
    LowRank matrices;
    matrices.down =
        AddLinear(plan, prefix + "." + name + "_a_proj", sizes.rank, plan.hidden, false);
    matrices.up = AddLinear(plan, prefix + "." + name + "_b_proj", rows, sizes.rank, false);
    return matrices;
  };
  delta.decay_proj = low_rank("f", delta.decay_rows());
  delta.gate_proj = low_rank("g", delta.values());
  delta.dt_bias = plan.AddVector(
      VectorRef{label + ".dt_bias",
                {VectorPart{prefix + ".dt_bias",
                            {{delta.decay_rows()}, {delta.value_heads, delta.key_dim}}}}});
  delta.a = plan.AddVector(VectorRef{
      label + ".A_log",
      {VectorPart{prefix + ".A_log", {{1, 1, delta.value_heads, 1}, {delta.value_heads}}}},
      VectorTransform::kNegativeExp});
  delta.norm = AddNorm(plan, prefix + ".o_norm", delta.value_dim, eps);
  delta.out_proj = AddLinear(plan, prefix + ".o_proj", plan.hidden, delta.values(), false);
  return delta;
}

// Which layers have experts: mlp_layer_types, or those from first_k_dense_replace on of which
// moe_layer_freq counts.
std::vector<bool> ReadSparseLayers(const JsonObject& config, int64_t layers) {
  const int64_t first = config.Int({"first_k_dense_replace"}, 0, kMaxLayers, 1);
  const int64_t every = ReadSize(config, {"moe_layer_freq"}, 1);
  std::vector<bool> counted;
  for (int64_t layer = 0; layer < layers; ++layer) {
    counted.push_back(layer >= first && layer % every == 0);
  }
  if (!config.Has("mlp_layer_types")) return counted;
  std::vector<bool> sparse = ReadLayersOfType(config, "mlp_layer_types", layers, "sparse", "dense");
  if ((config.Has("first_k_dense_replace") || every > 1) && sparse != counted) {
    Fail(config.where(),
         ": the field mlp_layer_types names other layers than "
         "first_k_dense_replace and moe_layer_freq.");
  }
  return sparse;
}

MoeMlp ReadExperts(const JsonObject& config, int64_t layers, Activation activation) {
  const FieldNames experts = {"num_experts", "num_local_experts", "n_routed_experts"};
  const FieldNames top_k = {"num_experts_per_token", "num_experts_per_tok"};
  const FieldNames groups = {"num_expert_group", "n_group"};
  const FieldNames normalize = {"moe_renormalize", "norm_topk_prob"};
  for (const FieldNames& names : {experts, top_k, groups, normalize}) RequireSame(config, names);
  MoeMlp moe;
  moe.experts = config.Int(experts, 1, kMaxExpertsInAll / layers);
  moe.top_k = config.Int(top_k, 1, moe.experts);
  moe.intermediate = ReadSize(config, {"moe_intermediate_size"});
  moe.activation = activation;
  const std::string scores = config.String({"moe_router_activation_func"}, "sigmoid");
  if (scores != "sigmoid" && scores != "softmax") {
    Fail(config.where(), ": the field moe_router_activation_func is \"", scores,
         "\"; \"sigmoid\" and \"softmax\" are implemented.");
  }
  if (scores == "sigmoid") moe.routing.scores = RouterScores::kSigmoid;
  moe.routing.groups = config.Int(groups, 1, moe.experts, 1);
  RequireMultiple(config, "num_experts", moe.experts, "num_expert_group", moe.routing.groups);
  moe.routing.top_groups = config.Int({"topk_group"}, 1, moe.routing.groups, 1);
  if (moe.routing.groups > 1) RequireBool(config, "use_grouped_topk", true);
  // The original code and mlx-lm leave the weight of a single expert as it is; transformers, whose
  // configs alone have mlp_layer_types, makes it one.
  const bool single_too = config.Has("mlp_layer_types");
  moe.routing.normalize = config.Bool(normalize, true) && (moe.top_k > 1 || single_too);
  moe.routing.normalize_eps = 1e-20f;
  moe.routing.scale = ReadScale(config, {"routed_scaling_factor"}, 2.446);
  RequireString(config, "topk_method", "noaux_tc");
  return moe;
}

// The experts' and the shared MLP's part of a block.
std::vector<Mixer> AddExpertLayer(Plan& plan, const std::string& layer, const MoeMlp& sizes,
                                  int64_t shared, const TensorNames& names) {
  MoeMlp moe = sizes;
  const bool mlx = names.Uses(layer + ".mlp.gate.weight", true);
  const std::string prefix = layer + (mlx ? ".mlp" : ".block_sparse_moe");
  moe.router = AddLinear(plan, prefix + ".gate", moe.experts, plan.hidden, false);
  moe.routing.choice_bias = plan.AddVector(
      LabelOf(prefix) + ".e_score_correction_bias",
      prefix + (mlx ? ".e_score_correction_bias" : ".gate.e_score_correction_bias"), moe.experts);
  ExpertModules modules;
  modules.stacked = mlx;
  modules.prefix = prefix + (mlx ? ".switch_mlp" : ".experts");
  modules.inputs = {mlx ? "gate_proj" : "w1", mlx ? "up_proj" : "w3"};
  modules.down = mlx ? "down_proj" : "w2";
  AddExperts(plan, LabelOf(prefix), modules, moe);
  std::vector<Mixer> mixers{moe};
  if (shared > 0) {
    mixers.push_back(AddGateUpMlp(plan, prefix + ".shared_experts", shared, moe.activation, false));
  }
  return mixers;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "kimi_linear";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  RequireSame(config, {"model_max_length", "max_position_embeddings"});
  plan.max_positions = ReadSize(config, {"model_max_length", "max_position_embeddings"}, 1048576);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-5);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const std::optional<JsonObject> linear = config.Object({"linear_attn_config"});
  const std::vector<LayerKind> kinds = ReadKinds(config, linear, layers);
  const DeltaSizes delta = ReadDelta(config, linear);
  // Latent attention without positions.
  RequireBool(config, "mla_use_nope", true);
  const LatentAttention attention = ReadLatentAttentionSizes(config);

  const bool attention_bias = config.Bool({"attention_bias"}, false);

  const std::vector<bool> sparse = ReadSparseLayers(config, layers);
  const MoeMlp experts = ReadExperts(config, layers, activation);
  RequireSame(config, {"num_shared_experts", "n_shared_experts"});
  const int64_t shared = config.Int({"num_shared_experts", "n_shared_experts"}, 0,
                                    kMaxSize / experts.intermediate, 1) *
                         experts.intermediate;

  const bool tied = config.Bool({"tie_word_embeddings"}, false);
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    const std::string name = prefix + ".self_attn";
    Mixer mixer;
    if (kinds[static_cast<size_t>(layer)] == LayerKind::kMamba) {
      mixer = AddDelta(plan, name, delta, eps, names);
    } else {
      // The norm of the latent keeps its class's eps.
      mixer = AddLatentAttention(plan, name, names, attention, attention_bias, 1e-6f);
    }
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".input_layernorm", eps, {std::move(mixer)}, 1));
    std::vector<Mixer> mlps;
    if (sparse[static_cast<size_t>(layer)]) {
      mlps = AddExpertLayer(plan, prefix, experts, shared, names);
    } else {
      mlps.push_back(AddGateUpMlp(plan, prefix + ".mlp", intermediate, activation, false));
    }
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".post_attention_layernorm", eps, std::move(mlps), 1));
  }
  // Layers that predict further tokens.
  plan.ignored_tensors.push_back("model.mtp*");
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_kimi_linear;
const Family kFamily_kimi_linear = {
    "kimi_linear",
    "Kimi Linear: Kimi Delta Attention and latent attention, mixture of experts",
    {"KimiLinearForCausalLM"},
    Build,
};

}  // namespace adder
