// Hunyuan with a mixture of experts beside a shared MLP in every layer; attention as in the dense
// model. Sizes may be given for all layers or layer by layer. The weights of the chosen experts are
// normalised.
#include "core/error.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// The field `key`: a number, or an array with one number per layer; each in [1, max].
std::vector<int64_t> ReadNumbers(const JsonObject& config, std::string_view key, int64_t layers,
                                 int64_t max) {
  const Json& value = *config.Find({key});
  if (!value.is_array()) {
    return std::vector<int64_t>(static_cast<size_t>(layers), config.Int({key}, 1, max));
  }
  std::vector<int64_t> numbers;
  for (const Json& entry : value) {
    const Json wrapped = {{std::string(key), entry}};
    numbers.push_back(JsonObject(wrapped, config.where()).Int({key}, 1, max));
  }
  if (static_cast<int64_t>(numbers.size()) != layers) {
    Fail(config.where(), ": the field ", key, " has ", numbers.size(),
         " entries, but the model has ", layers, " layers.");
  }
  return numbers;
}

// The numbers of a field that different writers' files give the names `keys`.
std::vector<int64_t> ReadPerLayer(const JsonObject& config, FieldNames keys, int64_t layers,
                                  int64_t max, std::optional<int64_t> default_value) {
  std::vector<int64_t> numbers;
  std::string_view first;
  for (const std::string_view key : keys) {
    if (!config.Has(key)) continue;
    const std::vector<int64_t> own = ReadNumbers(config, key, layers, max);
    if (first.empty()) {
      first = key;
      numbers = own;
    } else if (own != numbers) {
      Fail(config.where(), ": the field ", key, " is ", config.Find({key})->dump(), ", but ", first,
           " is ", config.Find({first})->dump(), "; they should say the same.");
    }
  }
  if (first.empty()) {
    numbers.assign(static_cast<size_t>(layers), config.Int(keys, 1, max, default_value));
  }
  return numbers;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "hunyuan_v1_moe";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  plan.max_positions = ReadMaxPositions(config, 2048);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-5);
  const Activation activation = ReadActivation(config, {"hidden_act"});
  const HunyuanAttention hunyuan = ReadHunyuanAttention(config, plan.hidden);

  const auto experts = ReadPerLayer(config, {"num_experts", "num_local_experts"}, layers,
                                    kMaxExpertsInAll / layers, {});
  const auto top_k =
      ReadPerLayer(config, {"moe_topk", "num_experts_per_tok"}, layers, kMaxExpertsInAll, 1);
  const auto shared = ReadPerLayer(config, {"num_shared_expert"}, layers, kMaxSize, 1);
  const auto expert_intermediate =
      ReadPerLayer(config, {"moe_intermediate_size"}, layers, kMaxSize, intermediate);
  const bool has_shared = config.Bool({"use_mixed_mlp_moe"}, true);
  RequireBool(config, "norm_topk_prob", true);
  RequireBool(config, "group_limited_greedy", false);
  RequireInt(config, "moe_layer_num_skipped", 0);
  if (config.Number({"routed_scaling_factor"}, 1.0) != 1.0) {
    Fail(config.where(), ": the field routed_scaling_factor is ",
         config.Number({"routed_scaling_factor"}), "; only 1 is implemented for this family.");
  }

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto index = static_cast<size_t>(layer);
    const std::string prefix = "model.layers." + std::to_string(layer);
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".input_layernorm", eps,
                  {AddHunyuanAttention(plan, prefix + ".self_attn", hunyuan, eps)}, 1));
    MoeMlp moe;
    moe.experts = experts[index];
    moe.top_k = top_k[index];
    moe.intermediate = expert_intermediate[index];
    moe.activation = activation;
    moe.router = AddLinear(plan, prefix + ".mlp.gate.wg", moe.experts, plan.hidden, false);
    AddGateUpExperts(plan, prefix + ".mlp", names, moe);
    std::vector<Mixer> mlps{moe};
    if (has_shared) {
      const DenseMlp shared_mlp = AddGateUpMlp(plan, prefix + ".mlp.shared_mlp",
                                               intermediate * shared[index], activation, false);
      mlps = {moe, shared_mlp};
    }
    plan.blocks.push_back(
        MakeBlock(plan, layer, prefix + ".post_attention_layernorm", eps, std::move(mlps), 1));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_hunyuan_v1_moe;
const Family kFamily_hunyuan_v1_moe = {
    "hunyuan_v1_moe",
    "Hunyuan A13B: attention, mixture of experts beside a shared MLP",
    {"HunYuanMoEV1ForCausalLM"},
    Build,
    {"hunyuan"},
};

}  // namespace adder
