#include "model/state_space_fields.h"

#include "core/error.h"

namespace adder {

int64_t ReadDtRank(const JsonObject& config, FieldNames keys, int64_t hidden) {
  const Json* rank = config.Find(keys);
  if (rank == nullptr || *rank == "auto") return (hidden + 15) / 16;
  return ReadSize(config, keys);
}

Mamba1 AddMamba1(Plan& plan, const std::string& prefix, const Mamba1& sizes, bool proj_bias,
                 bool conv_bias) {
  Mamba1 mamba = sizes;
  const std::string label = LabelOf(prefix);
  mamba.in_proj =
      AddLinear(plan, prefix + ".in_proj", sizes.in_proj_rows(), plan.hidden, proj_bias);
  // Hugging Face files have the taps last, MLX files the single input channel.
  mamba.conv_weight = plan.AddVector(
      VectorRef{label + ".conv1d",
                {VectorPart{prefix + ".conv1d.weight",
                            {{sizes.inner, 1, sizes.d_conv}, {sizes.inner, sizes.d_conv, 1}}}},
                VectorTransform::kConvTimeMajor});
  if (conv_bias) {
    mamba.conv_bias = plan.AddVector(label + ".conv1d bias", prefix + ".conv1d.bias", sizes.inner);
  }
  mamba.x_proj = AddLinear(plan, prefix + ".x_proj", sizes.x_proj_rows(), sizes.inner, false);
  mamba.dt_proj = AddLinear(plan, prefix + ".dt_proj", sizes.inner, sizes.dt_rank, true);
  mamba.a =
      plan.AddVector(VectorRef{label + ".A_log",
                               {VectorPart{prefix + ".A_log", {{sizes.inner, sizes.d_state}}}},
                               VectorTransform::kNegativeExpTransposed});
  mamba.d = plan.AddVector(label + ".D", prefix + ".D", sizes.inner);
  mamba.out_proj = AddLinear(plan, prefix + ".out_proj", plan.hidden, sizes.inner, proj_bias);
  return mamba;
}

OriginalMamba ReadOriginalMamba(const JsonObject& config, const TensorNames& names,
                                std::string_view layer, Plan& plan) {
  plan.hidden = ReadSize(config, {"d_model"});
  const int64_t multiple = ReadSize(config, {"pad_vocab_size_multiple"}, 8);
  const int64_t vocab = ReadVocab(config, {"vocab_size"});
  plan.vocab = (vocab + multiple - 1) / multiple * multiple;
  RequireBool(config, "rms_norm", true);
  RequireInt(config, "d_intermediate", 0);
  if (const Json* attention = config.Find({"attn_layer_idx"})) {
    if (!attention->is_array() || !attention->empty()) {
      Fail(config.where(), ": the field attn_layer_idx is ", attention->dump(),
           "; attention layers are not implemented for this family.");
    }
  }
  static const Json no_fields = Json::object();
  const std::optional<JsonObject> nested = config.Object({"ssm_cfg"});
  OriginalMamba out{ReadLayerCount(config, {"n_layer"}),
                    ReadTied(config, {"tie_embeddings"}, names, "lm_head.weight"),
                    nested ? *nested : JsonObject(no_fields, config.where() + ": ssm_cfg")};
  RequireString(out.ssm, "layer", layer);
  return out;
}

Plan BuildMamba1Model(const std::string& family, const JsonObject& config, const TensorNames& names,
                      std::optional<float> norm_eps) {
  Plan plan;
  plan.family = family;
  Mamba1 mamba;
  int64_t layers = 0;
  bool tied = false;
  bool proj_bias = false;
  bool conv_bias = true;
  float eps = 1e-5f;
  if (config.Has("d_model") && !config.Has("hidden_size")) {
    const OriginalMamba original = ReadOriginalMamba(config, names, "Mamba1", plan);
    const JsonObject& ssm = original.ssm;
    layers = original.layers;
    tied = original.tied;
    mamba.inner = plan.hidden * ReadSize(ssm, {"expand"}, 2);
    mamba.d_state = ReadSize(ssm, {"d_state"}, 16);
    mamba.d_conv = ssm.Int({"d_conv"}, 1, 1024, 4);
    mamba.dt_rank = ReadDtRank(ssm, {"dt_rank"}, plan.hidden);
    proj_bias = ssm.Bool({"bias"}, false);
    conv_bias = ssm.Bool({"conv_bias"}, true);
  } else {
    plan.vocab = ReadVocab(config, {"vocab_size"});
    plan.hidden = ReadSize(config, {"hidden_size"});
    layers = ReadLayerCount(config, {"num_hidden_layers"});
    tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
    eps = ReadEps(config, {"layer_norm_epsilon"}, 1e-5);
    ReadActivation(config, {"hidden_act"});
    RequireBool(config, "rms_norm", true);
    // The width counts where both are given: published files have an `expand` that is not used.
    mamba.inner = config.Has("intermediate_size") ? ReadSize(config, {"intermediate_size"})
                                                  : plan.hidden * ReadSize(config, {"expand"}, 2);
    mamba.d_state = ReadSize(config, {"state_size"}, 16);
    mamba.d_conv = config.Int({"conv_kernel"}, 1, 1024, 4);
    mamba.dt_rank = ReadDtRank(config, {"time_step_rank"}, plan.hidden);
    // The default has changed between releases of the reference; the checkpoint knows.
    proj_bias =
        config.Bool({"use_bias"}, names.HasOptional("backbone.layers.0.mixer.in_proj.bias"));
    conv_bias = config.Bool({"use_conv_bias"}, true);
  }
  if (norm_eps) {
    const RmsNorm norm{kNoId, *norm_eps, 1};
    mamba.dt_norm = mamba.b_norm = mamba.c_norm = norm;
  }
  // The original files call the embedding backbone.embedding, converted ones backbone.embeddings.
  const std::string embedding =
      names.HasOptional("backbone.embedding.weight") ? "backbone.embedding" : "backbone.embeddings";
  AddEmbeddingAndHead(plan, embedding, "backbone.norm_f", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "backbone.layers." + std::to_string(layer);
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".norm", eps,
                  {AddMamba1(plan, prefix + ".mixer", mamba, proj_bias, conv_bias)}, 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace adder
