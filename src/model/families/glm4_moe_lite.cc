// GLM-4.7 Flash: latent attention, and experts with sigmoid scores after the dense first layers.
#include "core/error.h"
#include "model/family_fields.h"
#include "model/latent_attention_fields.h"

namespace adder {
namespace {

// Which layers have experts: mlp_layer_types, else all from first_k_dense_replace on.
std::vector<bool> ReadSparseLayers(const JsonObject& config, int64_t layers) {
  std::vector<bool> sparse;
  const std::vector<std::string> types = config.Strings({"mlp_layer_types"});
  if (types.empty()) {
    const int64_t dense = config.Int({"first_k_dense_replace"}, 0, kMaxLayers, 1);
    for (int64_t layer = 0; layer < layers; ++layer) sparse.push_back(layer >= dense);
    return sparse;
  }
  if (static_cast<int64_t>(types.size()) != layers) {
    Fail(config.where(), ": the field mlp_layer_types has ", types.size(),
         " entries, but the model has ", layers, " layers.");
  }
  for (const std::string& type : types) {
    if (type != "dense" && type != "sparse") {
      Fail(config.where(), ": the field mlp_layer_types has the entry \"", type,
           "\"; \"dense\" and \"sparse\" are known.");
    }
    sparse.push_back(type == "sparse");
  }
  return sparse;
}

MoeMlp ReadExperts(const JsonObject& config, int64_t layers, Activation activation) {
  MoeMlp moe;
  moe.experts = config.Int({"n_routed_experts", "num_local_experts"}, 1, kMaxExpertsInAll / layers);
  moe.top_k = config.Int({"num_experts_per_tok"}, 1, moe.experts);
  moe.intermediate = ReadSize(config, {"moe_intermediate_size"});
  moe.activation = activation;
  moe.routing.scores = RouterScores::kSigmoid;
  moe.routing.groups = config.Int({"n_group"}, 1, moe.experts, 1);
  RequireMultiple(config, "n_routed_experts", moe.experts, "n_group", moe.routing.groups);
  moe.routing.top_groups = config.Int({"topk_group"}, 1, moe.routing.groups, 1);
  moe.routing.normalize = config.Bool({"norm_topk_prob"}, true);
  moe.routing.normalize_eps = 1e-20f;
  moe.routing.scale = ReadScale(config, {"routed_scaling_factor"}, 1.8);
  RequireString(config, "topk_method", "noaux_tc");
  RequireString(config, "scoring_func", "sigmoid");
  return moe;
}

// What a rotary scaling with mscale_all_dim adds to the scale of q . k.
float ReadScaleOfScaledRope(const JsonObject& config) {
  const std::optional<JsonObject> parameters = config.Object({"rope_parameters", "rope_scaling"});
  if (!parameters || parameters->String({"rope_type", "type"}, "default") == "default") return 1;
  const double mscale_all_dim = ReadScale(*parameters, {"mscale_all_dim"}, 0);
  if (mscale_all_dim == 0) return 1;
  const double magnitude = YarnMagnitude(ReadPositive(*parameters, {"factor"}), mscale_all_dim);
  return static_cast<float>(magnitude * magnitude);
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "glm4_moe_lite";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 202752);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-5);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const bool bias = config.Bool({"attention_bias"}, false);

  LatentAttention sizes = ReadLatentAttentionSizes(config);
  config.Int({"qk_rope_head_dim"}, 2, kMaxHeadDim);
  RequireMultiple(config, "qk_rope_head_dim", sizes.rope_dim, "2", 2);
  sizes.rope = ReadRope(config, sizes.rope_dim, 1.0);
  sizes.rope->interleaved = config.Bool({"rope_interleave"}, true);
  sizes.scale *= ReadScaleOfScaledRope(config);

  const std::vector<bool> sparse = ReadSparseLayers(config, layers);
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const MoeMlp experts = ReadExperts(config, layers, activation);
  const int64_t shared = config.Int({"n_shared_experts"}, 0, kMaxSize / experts.intermediate, 1);

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    // The norms inside of the attention keep their class's eps.
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".input_layernorm", eps,
                  {AddLatentAttention(plan, prefix + ".self_attn", names, sizes, bias, 1e-6f)}, 1));
    const std::string mlp = prefix + ".mlp";
    std::vector<Mixer> mixers;
    if (sparse[static_cast<size_t>(layer)]) {
      MoeMlp moe = experts;
      moe.router = AddLinear(plan, mlp + ".gate", moe.experts, plan.hidden, false);
      plan.matrices[static_cast<size_t>(moe.router.weight)].always_float = true;
      moe.routing.choice_bias = plan.AddVector(LabelOf(mlp) + ".e_score_correction_bias",
                                               mlp + ".gate.e_score_correction_bias", moe.experts);
      AddGateUpExperts(plan, mlp, names, moe);
      mixers.push_back(std::move(moe));
      if (shared > 0) {
        mixers.push_back(AddGateUpMlp(plan, mlp + ".shared_experts", shared * experts.intermediate,
                                      activation, false));
      }
    } else {
      mixers.push_back(AddGateUpMlp(plan, mlp, intermediate, activation, false));
    }
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".post_attention_layernorm", eps, std::move(mixers), 1));
  }
  // The layers after the last predict tokens further ahead; generation does not use them.
  const int64_t ahead = config.Int({"num_nextn_predict_layers"}, 0, kMaxLayers, 0);
  for (int64_t i = 0; i < ahead; ++i) {
    plan.ignored_tensors.push_back("model.layers." + std::to_string(layers + i) + ".*");
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_glm4_moe_lite;
const Family kFamily_glm4_moe_lite = {
    "glm4_moe_lite",
    "GLM-4.7 Flash: latent attention and experts with a shared one",
    {"Glm4MoeLiteForCausalLM"},
    Build,
};

}  // namespace adder
