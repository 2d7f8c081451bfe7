// Jamba: layers of Mamba-1 or attention without position encoding, each followed by an MLP or a
// mixture of experts. Which layer is what follows from periods and offsets; where there is a list
// of the layers' kinds too, mlx-lm reads that.
//
// Names: Hugging Face files hold every expert as feed_forward.experts.N.{gate,up,down}_proj; MLX
// files stack them as feed_forward.switch_mlp.{gate,up,down}_proj.
#include <cmath>
#include <utility>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/state_space_fields.h"

namespace adder {
namespace {

// Layers with number % period == offset.
struct Every {
  int64_t period = 1;
  int64_t offset = 0;
  bool Holds(int64_t layer) const { return layer % period == offset; }
};

Every ReadEvery(const JsonObject& config, std::string_view period, int64_t default_period,
                std::string_view offset, int64_t default_offset) {
  Every every;
  every.period = ReadSize(config, {period}, default_period);
  every.offset = config.Int({offset}, 0, kMaxSize, default_offset);
  if (every.offset >= every.period) {
    Fail(config.where(), ": the field ", offset, " (", every.offset, ") should be smaller than ",
         period, " (", every.period, ").");
  }
  return every;
}

std::vector<LayerKind> ReadLayerKinds(const JsonObject& config, int64_t layers) {
  const Every attention = ReadEvery(config, "attn_layer_period", 8, "attn_layer_offset", 4);
  std::vector<LayerKind> kinds;
  for (int64_t layer = 0; layer < layers; ++layer) {
    kinds.push_back(attention.Holds(layer) ? LayerKind::kAttention : LayerKind::kMamba);
  }
  AgreedLayers<std::vector<LayerKind>> agreed(config);
  agreed.Add("attn_layer_period / attn_layer_offset", std::move(kinds));
  return ReadAgreedLayerTypes(config, layers, std::move(agreed));
}

// One expert's rows, of its own module or of a stacked one.
MatrixPart ExpertPart(const std::string& prefix, const std::string& name, int64_t rows,
                      int64_t experts, int64_t expert, bool stacked) {
  MatrixPart part;
  part.module = stacked ? prefix + ".switch_mlp." + name
                        : prefix + ".experts." + std::to_string(expert) + "." + name;
  part.rows = rows;
  part.row_count = rows;
  if (stacked) {
    part.experts = experts;
    part.expert = expert;
  }
  return part;
}

// The router's weights are softmax over all experts, of which the chosen keep theirs.
MoeMlp AddMoe(Plan& plan, const std::string& prefix, MoeMlp moe, const TensorNames& names) {
  moe.routing.normalize = false;
  moe.router = AddLinear(plan, prefix + ".router", moe.experts, plan.hidden, false);
  const bool stacked = names.Uses(prefix + ".switch_mlp.gate_proj.weight", true);
  for (int64_t expert = 0; expert < moe.experts; ++expert) {
    const auto part = [&](const char* name, int64_t rows) {
      return ExpertPart(prefix, name, rows, moe.experts, expert, stacked);
    };
    const std::string label = LabelOf(prefix) + ".experts." + std::to_string(expert);
    moe.gate_up.push_back(plan.AddMatrix(
        MatrixRef{label + ".gate_up",
                  2 * moe.intermediate,
                  plan.hidden,
                  {part("gate_proj", moe.intermediate), part("up_proj", moe.intermediate)}}));
    moe.down.push_back(plan.AddMatrix(MatrixRef{
        label + ".down", plan.hidden, moe.intermediate, {part("down_proj", plan.hidden)}}));
  }
  return moe;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "jamba";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 262144);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const std::vector<LayerKind> kinds = ReadLayerKinds(config, layers);
  const Every expert_layers = ReadEvery(config, "expert_layer_period", 2, "expert_layer_offset", 1);
  if (config.Has("sliding_window")) {
    Fail(config.where(), ": the field sliding_window is ", config.Find({"sliding_window"})->dump(),
         "; only null is implemented for this family.");
  }

  Attention attention = ReadAttentionSizes(config, plan.hidden);
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));

  Mamba1 sizes;
  sizes.inner = plan.hidden * ReadSize(config, {"mamba_expand"}, 2);
  sizes.d_state = ReadSize(config, {"mamba_d_state"}, 16);
  sizes.d_conv = config.Int({"mamba_d_conv"}, 1, 1024, 4);
  sizes.dt_rank = ReadDtRank(config, {"mamba_dt_rank"}, plan.hidden);
  const bool proj_bias = config.Bool({"mamba_proj_bias"}, false);
  const bool conv_bias = config.Bool({"mamba_conv_bias"}, true);

  MoeMlp moe;
  RequireSame(config, {"num_experts", "num_local_experts"});
  moe.experts = config.Int({"num_experts", "num_local_experts"}, 1, kMaxExpertsInAll / layers, 16);
  moe.intermediate = intermediate;
  moe.activation = activation;
  // One expert is an MLP without a router.
  if (moe.experts > 1) moe.top_k = config.Int({"num_experts_per_tok"}, 1, moe.experts, 2);

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.final_layernorm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    Mixer mixer;
    if (kinds[static_cast<size_t>(layer)] == LayerKind::kAttention) {
      mixer = AddAttention(plan, prefix + ".self_attn", attention, false);
    } else {
      const std::string name = prefix + ".mamba";
      Mamba1 mamba = sizes;
      mamba.dt_norm = AddNorm(plan, name + ".dt_layernorm", sizes.dt_rank, eps);
      mamba.b_norm = AddNorm(plan, name + ".b_layernorm", sizes.d_state, eps);
      mamba.c_norm = AddNorm(plan, name + ".c_layernorm", sizes.d_state, eps);
      mixer = AddMamba1(plan, name, mamba, proj_bias, conv_bias);
    }
    plan.blocks.push_back(MakeBlock(plan, layer, prefix + ".input_layernorm", eps, {mixer}, 1));
    const std::string mlp = prefix + ".feed_forward";
    Mixer feed_forward;
    if (moe.experts > 1 && expert_layers.Holds(layer)) {
      feed_forward = AddMoe(plan, mlp, moe, names);
    } else {
      feed_forward = AddGateUpMlp(plan, mlp, intermediate, activation, false);
    }
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".pre_ff_layernorm", eps, {feed_forward}, 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_jamba;
const Family kFamily_jamba = {
    "jamba",
    "Jamba: Mamba and attention, MLP and mixture of experts",
    {"JambaForCausalLM"},
    Build,
};

}  // namespace adder
