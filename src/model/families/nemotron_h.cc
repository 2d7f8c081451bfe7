// Nemotron-H: every layer is one mixer behind a norm, Mamba-2 (with the gated norm per group),
// attention without positions, an MLP without a gate, or a mixture of such MLPs beside a shared
// one.
//
// Experts are experts.EXPERT.{up,down}_proj in Hugging Face files and stacked switch_mlp.{fc1,fc2}
// in MLX files, where the router is never quantised.
#include <algorithm>
#include <cmath>
#include <tuple>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// M Mamba-2, * attention, - MLP, E experts.
char LetterOf(std::string_view type) {
  if (type == "mamba" || type == "linear_attention") return 'M';
  if (type == "attention" || type == "full_attention") return '*';
  if (type == "mlp") return '-';
  if (type == "moe") return 'E';
  return type.size() == 1 ? type[0] : '?';
}

// One letter per layer, of a field that is a text of letters, or a list of letters or names.
std::string ReadLetters(const JsonObject& config, std::string_view field) {
  std::string letters;
  if (config.Find({field})->is_string()) {
    letters = config.String({field});
  } else {
    for (const std::string& type : config.Strings({field})) letters += LetterOf(type);
  }
  if (letters.empty() || static_cast<int64_t>(letters.size()) > kMaxLayers ||
      letters.find_first_not_of("M*-E") != std::string::npos) {
    Fail(config.where(), ": the field ", field, " should have one entry per layer, M (mamba or ",
         "linear_attention), * (attention or full_attention), - (mlp) or E (moe), and at most ",
         kMaxLayers, "; it is \"", letters.substr(0, 200), "\".");
  }
  return letters;
}

std::string ReadPattern(const JsonObject& config) {
  AgreedLayers<std::string> agreed(config);
  for (const std::string_view field :
       {"hybrid_override_pattern", "layers_block_type", "layer_types"}) {
    if (config.Has(field)) agreed.Add(field, ReadLetters(config, field));
  }
  if (!agreed.get()) {
    Fail(config.where(),
         " lacks the field hybrid_override_pattern or layers_block_type, which says what each "
         "layer is.");
  }
  const std::string pattern = *agreed.get();
  const auto layers = static_cast<int64_t>(pattern.size());
  if (config.Int({"num_hidden_layers"}, 1, kMaxLayers, layers) != layers) {
    Fail(config.where(), ": the field num_hidden_layers is ",
         config.Int({"num_hidden_layers"}, 1, kMaxLayers),
         ", but hybrid_override_pattern / layers_block_type has ", layers, " layers.");
  }
  return pattern;
}

// Where a field has an old name, that counts before the new one, as in the reference.
//
// time_step_min is no limit: it belongs to the initialisation of training. The original code and
// mlx-lm clamp to time_step_limit alone. Newer transformers clamp a prompt to time_step_min, but
// not the tokens after it; whichever way a text is cut, the result has to be the same here.
Mamba2 ReadMamba(const JsonObject& config) {
  Mamba2 mamba;
  mamba.heads = ReadSize(config, {"mamba_num_heads"});
  mamba.head_dim = ReadSize(config, {"mamba_head_dim"});
  mamba.d_state = ReadSize(config, {"ssm_state_size"});
  mamba.groups = ReadSize(config, {"mamba_n_groups", "n_groups"}, 8);
  RequireMultiple(config, "mamba_num_heads", mamba.heads, "n_groups", mamba.groups);
  mamba.d_conv = config.Int({"mamba_d_conv", "conv_kernel"}, 1, 1024, 4);
  mamba.chunk = ReadSize(config, {"mamba_chunk_size", "chunk_size"}, 128);
  std::tie(mamba.dt_min, mamba.dt_max) =
      ReadTimeStepLimit(config, {"mamba_dt_limit", "time_step_limit"});
  RequireString(config, "mamba_hidden_act", "silu");
  return mamba;
}

struct Experts {
  MoeMlp moe;
  int64_t shared = 0;  // width of the shared MLP; 0: none
};

Experts ReadExperts(const JsonObject& config, int64_t layers, Activation activation) {
  Experts read;
  MoeMlp& moe = read.moe;
  RequireSame(config, {"n_routed_experts", "num_local_experts", "num_experts"});
  moe.experts = config.Int({"n_routed_experts", "num_local_experts", "num_experts"}, 1,
                           kMaxExpertsInAll / layers);
  moe.top_k = config.Int({"num_experts_per_tok"}, 1, moe.experts);
  moe.intermediate = ReadSize(config, {"moe_intermediate_size"});
  moe.activation = activation;
  moe.gated = false;
  moe.routing.scores = RouterScores::kSigmoid;
  moe.routing.groups = config.Int({"n_group"}, 1, moe.experts, 1);
  RequireMultiple(config, "n_routed_experts", moe.experts, "n_group", moe.routing.groups);
  moe.routing.top_groups = config.Int({"topk_group"}, 1, moe.routing.groups, 1);
  moe.routing.normalize = config.Bool({"norm_topk_prob"}, true);
  moe.routing.normalize_eps = 1e-20f;
  moe.routing.scale = ReadScale(config, {"routed_scaling_factor"}, 1.0);
  if (config.Int({"n_shared_experts"}, 0, kMaxSize, 1) > 0) {
    read.shared = ReadSize(config, {"moe_shared_expert_intermediate_size"});
  }
  // Expert MLPs have no biases here.
  RequireBool(config, "mlp_bias", false);
  if (const Json* latent = config.Find({"moe_latent_size"})) {
    Fail(config.where(), ": the field moe_latent_size is ", latent->dump(),
         "; experts on a projection of the hidden state are not implemented.");
  }
  return read;
}

// The experts' and the shared MLP's part of a block.
std::vector<Mixer> AddExpertLayer(Plan& plan, const std::string& prefix, const Experts& sizes,
                                  const TensorNames& names) {
  MoeMlp moe = sizes.moe;
  moe.router = AddLinear(plan, prefix + ".gate", moe.experts, plan.hidden, false);
  plan.matrices[static_cast<size_t>(moe.router.weight)].always_float = true;
  moe.routing.choice_bias = plan.AddVector(LabelOf(prefix) + ".e_score_correction_bias",
                                           prefix + ".gate.e_score_correction_bias", moe.experts);
  ExpertModules modules;
  modules.stacked = names.Uses(prefix + ".switch_mlp.fc1.weight", true);
  modules.prefix = prefix + (modules.stacked ? ".switch_mlp" : ".experts");
  modules.inputs = {modules.stacked ? "fc1" : "up_proj"};
  modules.down = modules.stacked ? "fc2" : "down_proj";
  AddExperts(plan, LabelOf(prefix), modules, moe);
  const Activation activation = moe.activation;
  std::vector<Mixer> mixers{std::move(moe)};
  if (sizes.shared > 0) {
    mixers.push_back(AddUpMlp(plan, prefix + ".shared_experts", sizes.shared, activation, false));
  }
  return mixers;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "nemotron_h";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 4096);
  const std::string pattern = ReadPattern(config);
  const auto layers = static_cast<int64_t>(pattern.size());
  const auto has = [&pattern](char kind) { return pattern.find(kind) != std::string::npos; };
  const float eps = ReadEps(config, {"layer_norm_epsilon", "norm_eps"}, 1e-5);
  const Activation activation = ReadAnyActivation(config, {"mlp_hidden_act"}, "relu2");

  Mamba2 mamba;
  Mamba2Options mamba_options;
  if (has('M')) {
    mamba = ReadMamba(config);
    mamba_options.proj_bias = config.Bool({"use_bias"}, false);
    RequireBool(config, "mamba_proj_bias", mamba_options.proj_bias);
    mamba_options.conv_bias = config.Bool({"mamba_conv_bias", "use_conv_bias"}, true);
    mamba_options.norm_groups = mamba.groups;
    mamba_options.eps = eps;
  }
  Attention attention;
  const bool attention_bias = config.Bool({"attention_bias"}, false);
  if (has('*')) {
    attention = ReadAttentionSizes(config, plan.hidden);
    attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
    if (const Json* window = config.Find({"sliding_window"})) {
      Fail(config.where(), ": the field sliding_window is ", window->dump(),
           "; only null is implemented for this family.");
    }
  }
  const bool mlp_bias = config.Bool({"mlp_bias"}, false);
  const int64_t intermediate = has('-') ? ReadSize(config, {"intermediate_size"}) : 0;
  const Experts experts = has('E') ? ReadExperts(config, layers, activation) : Experts{};

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "backbone.embeddings", "backbone.norm_f", "lm_head", tied, eps);
  // Layers that predict several tokens ahead, which nothing here reads.
  plan.ignored_tensors.push_back("mtp.*");
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "backbone.layers." + std::to_string(layer);
    const std::string mixer = prefix + ".mixer";
    std::vector<Mixer> mixers;
    switch (pattern[static_cast<size_t>(layer)]) {
      case 'M':
        mixers.push_back(AddMamba2(plan, mixer, mamba, mamba_options));
        break;
      case '*':
        mixers.push_back(AddAttention(plan, mixer, attention, attention_bias));
        break;
      case '-':
        mixers.push_back(AddUpMlp(plan, mixer, intermediate, activation, mlp_bias));
        break;
      default:
        mixers = AddExpertLayer(plan, mixer, experts, names);
        break;
    }
    plan.blocks.push_back(MakeBlock(plan, layer, prefix + ".norm", eps, std::move(mixers), 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_nemotron_h;
const Family kFamily_nemotron_h = {
    "nemotron_h",
    "Nemotron-H: layers of Mamba-2, attention, MLP or mixture of experts",
    {"NemotronHForCausalLM"},
    Build,
};

}  // namespace adder
