// RWKV-7: layers of the generalised delta rule with token shift, each followed by an MLP with token
// shift. Norms are layer norms, one of them behind the embedding.
//
// Hugging Face and MLX files use the same names; MLX files give some vectors a row per head.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

struct Sizes {
  Rwkv7 mixer;
  int64_t decay_rank = 0;
  int64_t rate_rank = 0;
  int64_t gate_rank = 0;
  int64_t value_rank = 0;
};

// As the reference, whose default of head_dim counts where the field is absent, and num_heads only
// where it is null: published files have a num_heads that fits nothing else.
int64_t ReadHeadDim(const JsonObject& config, int64_t hidden) {
  const bool null = config.value().contains("head_dim") && !config.Has("head_dim");
  if (null && config.Has("num_heads")) {
    const int64_t heads = ReadSize(config, {"num_heads"});
    RequireMultiple(config, "hidden_size", hidden, "num_heads", heads);
    return hidden / heads;
  }
  const int64_t head_dim = ReadSize(config, {"head_dim"}, 64);
  RequireMultiple(config, "hidden_size", hidden, "head_dim", head_dim);
  return head_dim;
}

// The reference's rule for files that state how many times wider than the hidden state it is.
int64_t ReadIntermediate(const JsonObject& config, int64_t hidden) {
  if (config.Has("intermediate_size")) return ReadSize(config, {"intermediate_size"});
  const double ratio = ReadPositive(config, {"hidden_ratio"}, 4.0);
  const double width = std::floor(static_cast<double>(hidden) * ratio);
  constexpr int64_t kMultiple = 32;
  if (width < 1 || width > static_cast<double>(kMaxSize - kMultiple)) {
    Fail(config.where(), ": the field hidden_ratio is ", ratio,
         ", which does not make a width of the MLP between 1 and ", kMaxSize - kMultiple,
         " from hidden_size (", hidden, ").");
  }
  return (static_cast<int64_t>(width) + kMultiple - 1) / kMultiple * kMultiple;
}

// Files may state the width of the values, for all layers or for each.
void RequireValuesAsWideAsHidden(const JsonObject& config, int64_t hidden, int64_t layers) {
  const Json* value = config.Find({"value_dim"});
  if (value == nullptr) return;
  const bool as_wide =
      value->is_array() ? static_cast<int64_t>(value->size()) == layers &&
                              std::all_of(value->begin(), value->end(),
                                          [hidden](const Json& entry) { return entry == hidden; })
                        : *value == hidden;
  if (!as_wide) {
    Fail(config.where(), ": the field value_dim is ", value->dump().substr(0, 200), "; only ",
         hidden, " (hidden_size), once or for each of the ", layers,
         " layers, is implemented for this family.");
  }
}

Sizes ReadSizes(const JsonObject& config, int64_t hidden) {
  Sizes sizes;
  sizes.mixer.head_dim = ReadHeadDim(config, hidden);
  sizes.mixer.heads = hidden / sizes.mixer.head_dim;
  sizes.decay_rank = ReadSize(config, {"decay_low_rank_dim"});
  sizes.rate_rank = ReadSize(config, {"a_low_rank_dim"});
  sizes.gate_rank = ReadSize(config, {"gate_low_rank_dim"});
  sizes.value_rank = ReadSize(config, {"v_low_rank_dim"});
  RequireBool(config, "norm_first", true);
  RequireBool(config, "norm_bias", true);
  RequireString(config, "hidden_act", "sqrelu");
  if (const Json* value = config.Find({"attn"})) {
    Fail(config.where(), ": the field attn is ", value->dump().substr(0, 200),
         "; only null is implemented for this family.");
  }
  return sizes;
}

RmsNorm AddLayerNorm(Plan& plan, const std::string& prefix, int64_t size, float eps) {
  RmsNorm norm = AddNorm(plan, prefix, size, eps);
  norm.centered = true;
  norm.bias = plan.AddVector(LabelOf(prefix) + " bias", prefix + ".bias", size);
  return norm;
}

// A vector per channel, in some files shaped [heads, head_dim].
VectorId AddHeadVector(Plan& plan, const std::string& tensor, const Rwkv7& m) {
  return plan.AddVector(
      VectorRef{LabelOf(tensor), {VectorPart{tensor, {{m.inner()}, {m.heads, m.head_dim}}}}});
}

LowRank AddLowRank(Plan& plan, const std::string& prefix, int64_t rank, int64_t rows, bool bias) {
  LowRank low_rank;
  low_rank.down = AddLinear(plan, prefix + ".lora.0", rank, plan.hidden, false);
  low_rank.up = AddLinear(plan, prefix + ".lora.2", rows, rank, bias);
  return low_rank;
}

// The first files hold the six vectors as the rows of one tensor, in the same order.
VectorRef ShiftMix(const std::string& prefix, int64_t hidden, const TensorNames& names) {
  VectorRef mix;
  mix.label = LabelOf(prefix) + ".x";
  if (names.HasOptional(prefix + ".x_x")) {
    mix.parts.push_back({prefix + ".x_x", {{6, hidden}, {6, 1, 1, hidden}}});
    return mix;
  }
  for (const char* name : {".x_r", ".x_w", ".x_k", ".x_v", ".x_a", ".x_g"}) {
    mix.parts.push_back({prefix + name, {{1, 1, hidden}, {hidden}}});
  }
  return mix;
}

Rwkv7 AddMixer(Plan& plan, const std::string& prefix, const Sizes& sizes, bool first, float eps,
               const TensorNames& names) {
  Rwkv7 m = sizes.mixer;
  m.shift_mix = plan.AddVector(ShiftMix(prefix, plan.hidden, names));
  m.r = AddLinear(plan, prefix + ".r_proj", m.inner(), plan.hidden, false);
  m.k = AddLinear(plan, prefix + ".k_proj", m.inner(), plan.hidden, false);
  m.v = AddLinear(plan, prefix + ".v_proj", m.inner(), plan.hidden, false);
  m.decay = AddLowRank(plan, prefix + ".w_lora", sizes.decay_rank, m.inner(), true);
  m.decay.activation = Activation::kTanh;
  m.rate = AddLowRank(plan, prefix + ".a_lora", sizes.rate_rank, m.inner(), true);
  m.gate = AddLowRank(plan, prefix + ".g_lora", sizes.gate_rank, m.inner(), false);
  m.gate.activation = Activation::kSigmoid;
  if (first) {
    // It has no earlier values to mix with.
    plan.ignored_tensors.push_back(prefix + ".v_lora.*");
  } else {
    m.value_mix = AddLowRank(plan, prefix + ".v_lora", sizes.value_rank, m.inner(), true);
  }
  m.key_scale = AddHeadVector(plan, prefix + ".k_k", m);
  m.key_rate = AddHeadVector(plan, prefix + ".k_a", m);
  m.bonus = plan.AddVector(
      VectorRef{LabelOf(prefix) + ".r_k", {VectorPart{prefix + ".r_k", {{m.heads, m.head_dim}}}}});
  m.norm.weight = AddHeadVector(plan, prefix + ".g_norm.weight", m);
  m.norm.bias = AddHeadVector(plan, prefix + ".g_norm.bias", m);
  m.norm.centered = true;
  m.norm.groups = m.heads;
  m.norm.eps = static_cast<float>(m.head_dim) * eps;
  m.output = AddLinear(plan, prefix + ".o_proj", plan.hidden, m.inner(), false);
  return m;
}

DenseMlp AddChannelMix(Plan& plan, const std::string& prefix, int64_t intermediate) {
  DenseMlp mlp;
  mlp.intermediate = intermediate;
  mlp.activation = Activation::kRelu2;
  mlp.gated = false;
  mlp.shift_mix = plan.AddVector(LabelOf(prefix) + ".x_k", prefix + ".x_k", plan.hidden);
  mlp.gate_up = AddLinear(plan, prefix + ".key", intermediate, plan.hidden, false);
  mlp.down = AddLinear(plan, prefix + ".value", plan.hidden, intermediate, false);
  return mlp;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "rwkv7";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadIntermediate(config, plan.hidden);
  RequireValuesAsWideAsHidden(config, plan.hidden, layers);
  const float eps = ReadEps(config, {"norm_eps"}, 1e-5);
  const Sizes sizes = ReadSizes(config, plan.hidden);
  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");

  AddEmbeddingAndHead(plan, "model.embeddings", "model.norm", "lm_head", tied, eps);
  plan.final_norm.centered = true;
  plan.final_norm.bias = plan.AddVector("norm bias", "model.norm.bias", plan.hidden);
  plan.embedding_norm = AddLayerNorm(plan, "model.layers.0.pre_norm", plan.hidden, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    const auto add = [&](const char* norm, Mixer mixer) {
      Block block;
      block.layer = layer;
      block.pre_norm = AddLayerNorm(plan, prefix + norm, plan.hidden, eps);
      block.mixers.push_back(std::move(mixer));
      plan.blocks.push_back(std::move(block));
    };
    add(".attn_norm", AddMixer(plan, prefix + ".attn", sizes, layer == 0, eps, names));
    add(".ffn_norm", AddChannelMix(plan, prefix + ".ffn", intermediate));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_rwkv7;
const Family kFamily_rwkv7 = {
    "rwkv7",
    "RWKV-7: generalised delta rule with token shift",
    {"RWKV7ForCausalLM"},
    Build,
};

}  // namespace adder
