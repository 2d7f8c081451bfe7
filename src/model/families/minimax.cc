// MiniMax-Text-01: layers of lightning attention and of softmax attention, each followed by
// experts. The residual is what each part's norm makes of it, weighed against the part's result.
#include <cmath>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"

namespace adder {
namespace {

std::vector<bool> ReadTypeNumbers(const JsonObject& config, int64_t layers) {
  std::vector<bool> full;
  for (const double type : config.Numbers({"attn_type_list"})) {
    if (type != 0 && type != 1) {
      Fail(config.where(), ": the field attn_type_list has the entry ", type,
           "; 0 (linear) and 1 (softmax) are known.");
    }
    full.push_back(type == 1);
  }
  if (static_cast<int64_t>(full.size()) != layers) {
    Fail(config.where(), ": the field attn_type_list has ", full.size(),
         " entries, but the model has ", layers, " layers.");
  }
  return full;
}

// Which layers have softmax attention: layer_types, or attn_type_list of the original code, else
// every other one from the first on.
std::vector<bool> ReadFullLayers(const JsonObject& config, int64_t layers) {
  AgreedLayers<std::vector<bool>> agreed(config);
  if (config.Has("layer_types")) {
    agreed.Add("layer_types", ReadLayersOfType(config, "layer_types", layers, "full_attention",
                                               "linear_attention"));
  }
  if (config.Has("attn_type_list")) {
    agreed.Add("attn_type_list", ReadTypeNumbers(config, layers));
  }
  if (agreed.get()) return *agreed.get();
  std::vector<bool> full;
  for (int64_t layer = 0; layer < layers; ++layer) full.push_back(layer % 2 == 0);
  return full;
}

// Heads forget slower one after the other, and all of them slower in later layers.
std::vector<float> Slopes(int64_t heads, int64_t layer, int64_t layers) {
  const double factor =
      1 - static_cast<double>(layer) / (static_cast<double>(layers - 1) + 1e-5) + 1e-5;
  std::vector<float> slopes;
  for (int64_t head = 1; head <= heads; ++head) {
    const double rate =
        std::pow(2.0, -8.0 * static_cast<double>(head) / static_cast<double>(heads));
    slopes.push_back(static_cast<float>(rate * factor));
  }
  return slopes;
}

// alpha and beta: what the residual and the result count.
struct Weighing {
  float keep = 1;
  float add = 1;
};
// `original_name` is that of the original code's configs.
Weighing ReadWeighing(const JsonObject& config, const std::string& name,
                      const std::string& original_name) {
  const auto read = [&](const std::string& factor) {
    const std::string key = name + "_" + factor + "_factor";
    const std::string original = "layernorm_" + original_name + "_" + factor;
    RequireSame(config, {key, original});
    return ReadScale(config, {key, original}, 1.0);
  };
  return {read("alpha"), read("beta")};
}

// Options of the original code. Without postnorm, which is off unless its configs say so, the
// residual would not be normed.
void RequireImplementedOptions(const JsonObject& config) {
  RequireInt(config, "shared_intermediate_size", 0);
  RequireBool(config, "postnorm", true);
  for (const char* original : {"attn_type_list", "layernorm_full_attention_alpha",
                               "layernorm_linear_attention_alpha", "layernorm_mlp_alpha"}) {
    if (!config.Has(original) || config.Has("postnorm")) continue;
    Fail(config.where(), " has the field ", original,
         " of the original code, but lacks postnorm; only true is implemented for this family.");
  }
}

MoeMlp ReadExperts(const JsonObject& config, int64_t layers) {
  MoeMlp moe;
  RequireSame(config, {"num_local_experts", "num_experts"});
  moe.experts = config.Int({"num_local_experts", "num_experts"}, 1, kMaxExpertsInAll / layers);
  moe.top_k = config.Int({"num_experts_per_tok"}, 1, moe.experts);
  moe.intermediate = ReadSize(config, {"intermediate_size"});
  moe.activation = ReadActivation(config, {"hidden_act"});
  return moe;
}

void AddLayerExperts(Plan& plan, const std::string& prefix, const TensorNames& names, MoeMlp& moe) {
  moe.router = AddLinear(plan, prefix + ".gate", moe.experts, plan.hidden, false);
  ExpertModules modules;
  modules.stacked = names.Uses(prefix + ".switch_mlp.gate_proj.weight", true);
  modules.prefix = prefix + (modules.stacked ? ".switch_mlp" : ".experts");
  if (modules.stacked) {
    modules.inputs = {"gate_proj", "up_proj"};
    modules.down = "down_proj";
  } else {
    modules.inputs = {"w1", "w3"};
    modules.down = "w2";
  }
  AddExperts(plan, LabelOf(prefix), modules, moe);
}

LightningAttention AddLightning(Plan& plan, const std::string& prefix,
                                const LightningAttention& sizes) {
  LightningAttention lightning = sizes;
  const int64_t width = sizes.width();
  lightning.qkv = AddLinear(plan, prefix + ".qkv_proj", 3 * width, plan.hidden, false);
  // The norm keeps its class's eps.
  lightning.norm = AddNorm(plan, prefix + ".norm", width, 1e-6f);
  lightning.gate = AddLinear(plan, prefix + ".output_gate", width, plan.hidden, false);
  lightning.output = AddLinear(plan, prefix + ".out_proj", plan.hidden, width, false);
  // What follows from the sizes may be stored all the same.
  for (const char* name : {".slope_rate", ".query_decay", ".key_decay", ".diagonal_decay"}) {
    plan.ignored_tensors.push_back(prefix + name);
  }
  return lightning;
}

Block WeighedBlock(Plan& plan, int64_t layer, const std::string& norm, float eps, Mixer mixer,
                   const Weighing& weighing) {
  Block block = MakeBlock(plan, layer, norm, eps, {std::move(mixer)}, weighing.add);
  block.rule.normed = true;
  block.rule.keep = weighing.keep;
  return block;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "minimax";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 131072);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const std::vector<bool> full = ReadFullLayers(config, layers);
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-5);
  const MoeMlp experts = ReadExperts(config, layers);
  if (const Json* window = config.Find({"sliding_window"})) {
    Fail(config.where(), ": the field sliding_window is ", window->dump(),
         "; only null is implemented for this family.");
  }
  RequireImplementedOptions(config);

  // Every head of every layer has a slope of its own.
  config.Int({"num_attention_heads"}, 1, kMaxHeadsInAll / layers);
  Attention sizes = ReadAttentionSizes(config, plan.hidden);
  sizes.scale = 1.0f / std::sqrt(static_cast<float>(sizes.head_dim));
  // The original code's rotary_dim is the word; that transformers turns heads whole whatever it
  // says shows only where the two differ. A partial_rotary_factor has to agree with it.
  const int64_t rotary_dim = config.Int({"rotary_dim"}, 2, sizes.head_dim, sizes.head_dim);
  sizes.rope = ReadRope(config, sizes.head_dim,
                        static_cast<double>(rotary_dim) / static_cast<double>(sizes.head_dim), 1e6);
  if (sizes.rope->rotary_dim != rotary_dim) {
    Fail(config.where(), ": the field rotary_dim is ", rotary_dim,
         ", but partial_rotary_factor makes it ", sizes.rope->rotary_dim, ".");
  }
  LightningAttention lightning;
  lightning.heads = sizes.heads;
  lightning.head_dim = sizes.head_dim;
  lightning.activation = experts.activation;
  const Weighing full_weighing = ReadWeighing(config, "full_attn", "full_attention");
  const Weighing linear_weighing = ReadWeighing(config, "linear_attn", "linear_attention");
  const Weighing mlp_weighing = ReadWeighing(config, "mlp", "mlp");

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    const bool softmax = full[static_cast<size_t>(layer)];
    Mixer mixer;
    if (softmax) {
      mixer = AddAttention(plan, prefix + ".self_attn", sizes, false);
    } else {
      lightning.slopes = Slopes(lightning.heads, layer, layers);
      mixer = AddLightning(plan, prefix + ".self_attn", lightning);
    }
    plan.blocks.push_back(WeighedBlock(plan, layer, prefix + ".input_layernorm", eps,
                                       std::move(mixer),
                                       softmax ? full_weighing : linear_weighing));
    MoeMlp moe = experts;
    AddLayerExperts(plan, prefix + ".block_sparse_moe", names, moe);
    plan.blocks.push_back(WeighedBlock(plan, layer, prefix + ".post_attention_layernorm", eps,
                                       std::move(moe), mlp_weighing));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_minimax;
const Family kFamily_minimax = {
    "minimax",
    "MiniMax-Text-01: lightning attention, softmax attention and experts",
    {"MiniMaxForCausalLM"},
    Build,
};

}  // namespace adder
