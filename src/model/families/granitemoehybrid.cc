// Granite 4.0 H: layers of Mamba-2 or attention, each followed by a shared MLP, to which larger
// models add a mixture of experts on the same normed input. Four multipliers as in Granite 3.
//
// Names: Hugging Face files hold the shared MLP as shared_mlp.input_linear (gate | up) and
// output_linear, and the experts as stacked block_sparse_moe.input_linear [experts, 2 x
// intermediate, hidden] and output_linear. MLX files split the experts into
// block_sparse_moe.switch_mlp.{gate,up,down}_proj, and the MLP of models without experts into
// mlp.{gate,up,down}_proj.
#include <algorithm>

#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

struct Experts {
  int64_t count = 0;  // 0: no mixture of experts
  int64_t top_k = 0;
  int64_t intermediate = 0;
};

Experts ReadExperts(const JsonObject& config, int64_t layers) {
  Experts experts;
  experts.count = config.Int({"num_local_experts"}, 0, kMaxExpertsInAll / layers, 0);
  if (experts.count == 0) return experts;
  experts.top_k = config.Int({"num_experts_per_tok"}, 1, experts.count);
  experts.intermediate = ReadSize(config, {"intermediate_size"});
  return experts;
}

MoeMlp AddMoe(Plan& plan, const std::string& prefix, const Experts& experts, Activation activation,
              const TensorNames& names) {
  MoeMlp moe;
  moe.experts = experts.count;
  moe.top_k = experts.top_k;
  moe.intermediate = experts.intermediate;
  moe.activation = activation;
  moe.router = AddLinear(plan, prefix + ".router.layer", experts.count, plan.hidden, false);
  const std::string split = prefix + ".switch_mlp";
  const bool is_split = names.Uses(split + ".gate_proj.weight", true);
  ExpertModules modules;
  modules.stacked = true;
  modules.prefix = is_split ? split : prefix;
  modules.inputs = is_split ? std::vector<std::string>{"gate_proj", "up_proj"}
                            : std::vector<std::string>{"input_linear"};
  modules.down = is_split ? "down_proj" : "output_linear";
  AddExperts(plan, LabelOf(prefix), modules, moe);
  return moe;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "granitemoehybrid";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 2048);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const std::vector<LayerKind> kinds =
      ReadLayerTypes(config, {"layer_types", "layers_block_type"}, layers, LayerKind::kMamba);
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  RequireString(config, "normalization_function", "rmsnorm");

  plan.embedding_scale = ReadScale(config, {"embedding_multiplier"}, 1.0);
  plan.logits_scale = ReadInverseScale(config, {"logits_scaling"}, 1.0);
  const float residual_scale = ReadScale(config, {"residual_multiplier"}, 1.0);

  // A model of one kind of layer need not state the sizes of the other.
  const bool has_mamba = std::find(kinds.begin(), kinds.end(), LayerKind::kMamba) != kinds.end();
  const bool has_attention =
      std::find(kinds.begin(), kinds.end(), LayerKind::kAttention) != kinds.end();
  Mamba2 mamba;
  Mamba2Options mamba_options;
  if (has_mamba) {
    mamba = ReadMamba2Sizes(config, plan.hidden);
    mamba_options.proj_bias = config.Bool({"mamba_proj_bias"}, false);
    mamba_options.conv_bias = config.Bool({"mamba_conv_bias"}, true);
    mamba_options.eps = eps;
  }
  Attention attention;
  bool attention_bias = false;
  if (has_attention) {
    attention = ReadAttentionSizes(config, plan.hidden);
    attention.scale = ReadScale(config, {"attention_multiplier"}, 1.0);
    attention_bias = config.Bool({"attention_bias"}, false);
    // rope_theta is present even in models without rotary embedding.
    const std::string positions = config.String({"position_embedding_type"}, "nope");
    if (positions == "rope") {
      attention.rope = ReadRope(config, attention.head_dim);
    } else if (positions != "nope") {
      Fail(config.where(), ": the field position_embedding_type is \"", positions,
           "\"; \"rope\" and \"nope\" are implemented.");
    }
  }

  const Experts experts = ReadExperts(config, layers);
  const bool split_mlp =
      experts.count == 0 && names.Uses("model.layers.0.mlp.gate_proj.weight", true);
  // The MLX model of split files takes its width from intermediate_size.
  const int64_t shared_intermediate =
      split_mlp ? ReadSize(config, {"intermediate_size", "shared_intermediate_size"})
                : config.Int({"shared_intermediate_size"}, 0, kMaxSize, 0);

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    Mixer mixer;
    if (kinds[layer] == LayerKind::kMamba) {
      mixer = AddMamba2(plan, prefix + ".mamba", mamba, mamba_options);
    } else {
      mixer = AddAttention(plan, prefix + ".self_attn", attention, attention_bias);
    }
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".input_layernorm", eps, {mixer}, residual_scale));

    std::vector<Mixer> mlps;
    if (experts.count > 0) {
      mlps.push_back(AddMoe(plan, prefix + ".block_sparse_moe", experts, activation, names));
    }
    if (split_mlp) {
      mlps.push_back(AddGateUpMlp(plan, prefix + ".mlp", shared_intermediate, activation, false));
    } else if (shared_intermediate > 0) {
      mlps.push_back(AddFusedMlp(plan, prefix + ".shared_mlp", shared_intermediate, activation));
    }
    const std::string norm = prefix + ".post_attention_layernorm";
    if (mlps.empty()) {
      // The norm of an absent MLP feeds nothing.
      plan.ignored_tensors.push_back(norm + ".weight");
      continue;
    }
    plan.blocks.push_back(MakeBlock(plan, layer, norm, eps, std::move(mlps), residual_scale));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_granitemoehybrid;
const Family kFamily_granitemoehybrid = {
    "granitemoehybrid",
    "Granite 4.0 H: Mamba-2 and attention, MLP and mixture of experts",
    {"GraniteMoeHybridForCausalLM"},
    Build,
};

}  // namespace adder
