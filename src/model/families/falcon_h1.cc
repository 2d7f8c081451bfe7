// Falcon-H1: every layer adds Mamba-2 and attention of the same normed input, then an MLP, with
// multipliers of the maximal update parametrisation on embedding, inputs, outputs, keys, the parts
// of in_proj, the MLP and the logits.
//
// Both layouts have the same names. MLX conversions hold the multipliers inside the weights, all
// but key_multiplier, and still list them in config.json.
#include <array>
#include <cmath>

#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// What config.json says, or ones where a conversion has folded it into the weights.
struct Multipliers {
  float embedding = 1;
  float logits = 1;
  float attention_in = 1;
  float attention_out = 1;
  float ssm_in = 1;
  float ssm_out = 1;
  std::array<float, 5> ssm = {1, 1, 1, 1, 1};  // z, x, B, C, dt
  std::array<float, 2> mlp = {1, 1};           // gate, down
};

template <size_t kCount>
void ReadScales(const JsonObject& config, const char* key, std::array<float, kCount>& scales) {
  if (!config.Has(key)) return;
  const std::vector<double> values = config.Numbers({key});
  if (values.size() != kCount) {
    Fail(config.where(), ": the field ", key, " has ", values.size(), " entries, it should have ",
         kCount, ".");
  }
  for (size_t i = 0; i < kCount; ++i) {
    scales[i] = static_cast<float>(values[i]);
    if (!std::isfinite(scales[i])) {
      Fail(config.where(), ": the field ", key, " holds ", values[i],
           ", it should hold finite 32-bit numbers.");
    }
  }
}

Multipliers ReadMultipliers(const JsonObject& config, bool folded, bool tied) {
  Multipliers read;
  read.embedding = ReadScale(config, {"embedding_multiplier"}, 1.0);
  read.logits = ReadScale(config, {"lm_head_multiplier"}, 1.0);
  read.attention_in = ReadScale(config, {"attention_in_multiplier"}, 1.0);
  read.attention_out = ReadScale(config, {"attention_out_multiplier"}, 1.0);
  read.ssm_in = ReadScale(config, {"ssm_in_multiplier"}, 1.0);
  read.ssm_out = ReadScale(config, {"ssm_out_multiplier"}, 1.0);
  ReadScales(config, "ssm_multipliers", read.ssm);
  ReadScales(config, "mlp_multipliers", read.mlp);
  if (!folded) return read;
  Multipliers ones;
  // The head that the embedding serves as has the embedding's multiplier in it.
  if (tied) {
    ones.logits = read.logits * ReadInverseScale(config, {"embedding_multiplier"}, 1.0);
  }
  return ones;
}

// Scales all rows of a linear map, or none by 1.
void ScaleRows(Linear& linear, int64_t rows, float factor) {
  if (factor != 1) linear.row_scales = {{rows, factor}};
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "falcon_h1";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 8192);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-5);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const bool attention_bias = config.Bool({"attention_bias"}, false);
  const bool mlp_bias = config.Bool({"mlp_bias"}, false);
  RequireBool(config, "mamba_use_mlp", true);
  if (const Json* indices = config.Find({"attn_layer_indices"})) {
    Fail(config.where(), ": the field attn_layer_indices is ", indices->dump(),
         "; only layers that all have attention are implemented for this family.");
  }

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  const bool folded = names.HasMlxConvolution("model.layers.0.mamba.conv1d.weight");
  const Multipliers multipliers = ReadMultipliers(config, folded, tied);
  plan.embedding_scale = multipliers.embedding;
  plan.logits_scale = multipliers.logits;

  Attention sizes = ReadAttentionSizes(config, plan.hidden);
  // A factor of every key is one of every score.
  sizes.scale =
      ReadScale(config, {"key_multiplier"}, 1.0) / std::sqrt(static_cast<float>(sizes.head_dim));
  sizes.rope = ReadRope(config, sizes.head_dim);

  const Mamba2 mamba_sizes = ReadMamba2Sizes(config, plan.hidden);
  Mamba2Options options;
  options.proj_bias = config.Bool({"mamba_proj_bias"}, false);
  options.out_proj_bias = config.Bool({"projectors_bias"}, false);
  options.conv_bias = config.Bool({"mamba_conv_bias"}, true);
  options.gated_norm = config.Bool({"mamba_rms_norm"}, false);
  options.norm_groups = mamba_sizes.groups;
  options.eps = eps;
  const bool norm_before_gate = config.Bool({"mamba_norm_before_gate"}, true) && options.gated_norm;

  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.final_layernorm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    Mamba2 mamba = AddMamba2(plan, prefix + ".mamba", mamba_sizes, options);
    mamba.norm_before_gate = norm_before_gate;
    mamba.in_proj.input_scale = multipliers.ssm_in;
    if (!folded) {
      const int64_t state = mamba.groups * mamba.d_state;
      mamba.in_proj.row_scales = {{mamba.inner(), multipliers.ssm[0]},
                                  {mamba.inner(), multipliers.ssm[1]},
                                  {state, multipliers.ssm[2]},
                                  {state, multipliers.ssm[3]},
                                  {mamba.heads, multipliers.ssm[4]}};
    }
    ScaleRows(mamba.out_proj, plan.hidden, multipliers.ssm_out);
    Attention attention = AddAttention(plan, prefix + ".self_attn", sizes, attention_bias);
    attention.qkv.input_scale = multipliers.attention_in;
    ScaleRows(attention.output, plan.hidden, multipliers.attention_out);
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".input_layernorm", eps, {mamba, attention}, 1));

    DenseMlp mlp = AddGateUpMlp(plan, prefix + ".feed_forward", intermediate, activation, mlp_bias);
    if (multipliers.mlp[0] != 1) {
      mlp.gate_up.row_scales = {{intermediate, multipliers.mlp[0]}, {intermediate, 1}};
    }
    ScaleRows(mlp.down, plan.hidden, multipliers.mlp[1]);
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".pre_ff_layernorm", eps, {std::move(mlp)}, 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_falcon_h1;
const Family kFamily_falcon_h1 = {
    "falcon_h1",
    "Falcon-H1: Mamba-2 beside attention, and MLP, with multipliers",
    {"FalconH1ForCausalLM"},
    Build,
};

}  // namespace adder
