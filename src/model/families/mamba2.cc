// Mamba-2: every layer is one Mamba-2 mixer behind an RMSNorm.
//
// Two forms of config.json exist: the Hugging Face one (hidden_size, num_heads, ...), which MLX
// files share, and the original one of state-spaces/mamba (d_model, n_layer, ssm_cfg), whose
// defaults are those of the Mamba2 class there. The original files call the embedding
// backbone.embedding, converted ones backbone.embeddings.
#include <tuple>

#include "core/error.h"
#include "model/family_fields.h"
#include "model/state_space_fields.h"

namespace adder {
namespace {

// What the two config forms say in common.
struct Config {
  int64_t layers = 0;
  bool tied = false;
  float eps = 1e-5f;
  Mamba2 mamba;
  Mamba2Options options;
};

void CheckInner(const JsonObject& config, const Mamba2& mamba, int64_t inner) {
  if (mamba.inner() != inner) {
    Fail(config.where(), ": num_heads x head_dim is ", mamba.inner(),
         ", but expand x hidden_size is ", inner, ".");
  }
}

Config ReadConverted(const JsonObject& config, const TensorNames& names, Plan& plan) {
  Config out;
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  out.layers = ReadLayerCount(config, {"num_hidden_layers"});
  out.tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  out.eps = ReadEps(config, {"layer_norm_epsilon"}, 1e-5);
  ReadActivation(config, {"hidden_act"});
  RequireBool(config, "rms_norm", true);

  Mamba2& mamba = out.mamba;
  mamba.d_state = ReadSize(config, {"state_size"}, 128);
  const int64_t inner = plan.hidden * ReadSize(config, {"expand"}, 2);
  mamba.head_dim = ReadSize(config, {"head_dim"}, 64);
  if (!config.Has("num_heads")) {
    RequireMultiple(config, "expand x hidden_size", inner, "head_dim", mamba.head_dim);
  }
  mamba.heads = config.Has("num_heads") ? ReadSize(config, {"num_heads"}) : inner / mamba.head_dim;
  CheckInner(config, mamba, inner);
  mamba.groups = ReadSize(config, {"n_groups"}, 8);
  RequireMultiple(config, "num_heads", mamba.heads, "n_groups", mamba.groups);
  mamba.d_conv = config.Int({"conv_kernel"}, 1, 1024, 4);
  mamba.chunk = ReadSize(config, {"chunk_size"}, 256);
  std::tie(mamba.dt_min, mamba.dt_max) = ReadTimeStepLimit(config, {"time_step_limit"});
  out.options.proj_bias = config.Bool({"use_bias"}, false);
  out.options.conv_bias = config.Bool({"use_conv_bias"}, true);
  // norm_before_gate is written by converters but read by no implementation of this form: the gate
  // always comes first, and the norm spans all groups.
  out.options.eps = out.eps;
  return out;
}

Config ReadOriginal(const JsonObject& config, const TensorNames& names, Plan& plan) {
  const OriginalMamba original = ReadOriginalMamba(config, names, "Mamba2", plan);
  const JsonObject& ssm = original.ssm;
  Config out;
  out.layers = original.layers;
  out.tied = original.tied;
  RequireBool(ssm, "norm_before_gate", false);
  RequireBool(ssm, "D_has_hdim", false);

  Mamba2& mamba = out.mamba;
  mamba.d_state = ReadSize(ssm, {"d_state"}, 128);
  const int64_t inner = plan.hidden * ReadSize(ssm, {"expand"}, 2);
  // A narrower state-space part than the inner width, the rest a gated MLP.
  RequireInt(ssm, "d_ssm", inner);
  mamba.head_dim = ReadSize(ssm, {"headdim"}, 64);
  RequireMultiple(ssm, "expand x d_model", inner, "headdim", mamba.head_dim);
  mamba.heads = inner / mamba.head_dim;
  mamba.groups = ReadSize(ssm, {"ngroups"}, 1);
  RequireMultiple(ssm, "number of heads", mamba.heads, "ngroups", mamba.groups);
  mamba.d_conv = ssm.Int({"d_conv"}, 1, 1024, 4);
  mamba.chunk = ReadSize(ssm, {"chunk_size"}, 256);
  std::tie(mamba.dt_min, mamba.dt_max) = ReadTimeStepLimit(ssm, {"dt_limit"});
  out.options.proj_bias = ssm.Bool({"bias"}, false);
  out.options.conv_bias = ssm.Bool({"conv_bias"}, true);
  out.options.gated_norm = ssm.Bool({"rmsnorm"}, true);
  // Here, other than in the converted form, each group is normed on its own.
  out.options.norm_groups = mamba.groups;
  return out;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "mamba2";
  const bool original =
      config.Has("ssm_cfg") || (config.Has("d_model") && !config.Has("hidden_size"));
  const Config read =
      original ? ReadOriginal(config, names, plan) : ReadConverted(config, names, plan);
  const std::string embedding =
      names.HasOptional("backbone.embedding.weight") ? "backbone.embedding" : "backbone.embeddings";
  AddEmbeddingAndHead(plan, embedding, "backbone.norm_f", "lm_head", read.tied, read.eps);
  for (int64_t layer = 0; layer < read.layers; ++layer) {
    const std::string prefix = "backbone.layers." + std::to_string(layer);
    plan.blocks.push_back(MakeBlock(plan, layer, prefix + ".norm", read.eps,
                                    {AddMamba2(plan, prefix + ".mixer", read.mamba, read.options)},
                                    1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_mamba2;
const Family kFamily_mamba2 = {
    "mamba2",
    "Mamba-2, in the Hugging Face and the original state-spaces form",
    {"Mamba2ForCausalLM"},
    Build,
};

}  // namespace adder
