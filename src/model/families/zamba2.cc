// Zamba2: Mamba-2 layers, some of them hybrid. A hybrid layer first runs a transformer block that
// several layers share on the hidden state beside the embedding; a projection of its result is
// added to what the layer's Mamba-2 reads, but not to the residual. Each use of a shared block has
// low-rank adapters of its own, which lie below the first layer that uses the block.
#include <cmath>
#include <tuple>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// Which layers the field calls "hybrid"; the others are "mamba", in newer files "linear_attention".
std::vector<bool> ReadHybridTypes(const JsonObject& config, std::string_view field,
                                  int64_t layers) {
  std::vector<bool> hybrid;
  for (const std::string& type : config.Strings({field})) {
    if (type != "mamba" && type != "linear_attention" && type != "hybrid") {
      Fail(config.where(), ": the field ", field, " has the entry \"", type,
           "\"; \"mamba\", \"linear_attention\" and \"hybrid\" are known.");
    }
    hybrid.push_back(type == "hybrid");
  }
  if (static_cast<int64_t>(hybrid.size()) != layers) {
    Fail(config.where(), ": the field ", field, " has ", hybrid.size(),
         " entries, but the model has ", layers, " layers.");
  }
  return hybrid;
}

// Which layers are hybrid: those that layers_block_type calls so, or hybrid_layer_ids lists.
std::vector<bool> ReadHybridLayers(const JsonObject& config, int64_t layers) {
  AgreedLayers<std::vector<bool>> agreed(config);
  for (const std::string_view field : {"layers_block_type", "layer_types"}) {
    if (config.Has(field)) agreed.Add(field, ReadHybridTypes(config, field, layers));
  }
  if (config.Has("hybrid_layer_ids")) {
    agreed.Add("hybrid_layer_ids", ReadListedLayers(config, "hybrid_layer_ids", layers));
  }
  if (!agreed.get()) {
    Fail(config.where(), " lacks the field layers_block_type, which says what each layer is.");
  }
  return *agreed.get();
}

Mamba2 ReadMamba(const JsonObject& config, int64_t hidden) {
  Mamba2 mamba;
  mamba.heads = ReadSize(config, {"n_mamba_heads"}, 8);
  const int64_t inner = hidden * ReadSize(config, {"mamba_expand"}, 2);
  RequireMultiple(config, "mamba_expand x hidden_size", inner, "n_mamba_heads", mamba.heads);
  mamba.head_dim = inner / mamba.heads;
  if (ReadSize(config, {"mamba_headdim"}, mamba.head_dim) != mamba.head_dim) {
    Fail(config.where(), ": the field mamba_headdim is ", ReadSize(config, {"mamba_headdim"}),
         ", but mamba_expand x hidden_size / n_mamba_heads is ", mamba.head_dim, ".");
  }
  mamba.d_state = ReadSize(config, {"mamba_d_state"}, 64);
  mamba.groups = ReadSize(config, {"mamba_ngroups"}, 1);
  RequireMultiple(config, "n_mamba_heads", mamba.heads, "mamba_ngroups", mamba.groups);
  mamba.d_conv = config.Int({"mamba_d_conv"}, 1, 1024, 4);
  mamba.chunk = ReadSize(config, {"chunk_size"}, 256);
  if (config.Has("time_step_limit")) {
    std::tie(mamba.dt_min, mamba.dt_max) = ReadTimeStepLimit(config, {"time_step_limit"});
  } else {
    mamba.dt_min = ReadEps(config, {"time_step_min"}, 0.001);
  }
  RequireBool(config, "use_conv_bias", true);
  return mamba;
}

// What all shared blocks have in common.
struct Sizes {
  Attention attention;
  bool attention_adapters = false;
  int64_t intermediate = 0;
  Activation activation = Activation::kGelu;
  int64_t adapter_rank = 0;
  bool bias = false;
  float eps = 0;
};

// A shared block: its weights, without the adapters of one use.
struct SharedBlock {
  std::string prefix;
  RmsNorm input_norm;
  Attention attention;
  RmsNorm mlp_norm;
  DenseMlp mlp;
};

SharedBlock AddSharedBlock(Plan& plan, const std::string& prefix, const Sizes& sizes) {
  SharedBlock block;
  block.prefix = prefix;
  const int64_t width = 2 * plan.hidden;
  block.input_norm = AddNorm(plan, prefix + ".input_layernorm", width, sizes.eps);
  block.attention = sizes.attention;
  const int64_t rows = sizes.attention.heads * sizes.attention.head_dim;
  const int64_t kv_rows = sizes.attention.kv_heads * sizes.attention.head_dim;
  block.attention.qkv =
      AddStacked(plan, prefix + ".self_attn", "qkv",
                 {{"q_proj", rows}, {"k_proj", kv_rows}, {"v_proj", kv_rows}}, width, false);
  block.attention.output = AddLinear(plan, prefix + ".self_attn.o_proj", plan.hidden, rows, false);
  block.mlp_norm = AddNorm(plan, prefix + ".pre_ff_layernorm", plan.hidden, sizes.eps);
  block.mlp.intermediate = sizes.intermediate;
  block.mlp.activation = sizes.activation;
  block.mlp.gate_up = AddLinear(plan, prefix + ".feed_forward.gate_up_proj", 2 * sizes.intermediate,
                                plan.hidden, sizes.bias);
  block.mlp.down = AddLinear(plan, prefix + ".feed_forward.down_proj", plan.hidden,
                             sizes.intermediate, sizes.bias);
  return block;
}

// The adapters of the use number `use`: module NAME.use.0 makes the low rank, NAME.use.1 the rows.
Adapter AddAdapter(Plan& plan, const std::string& prefix, const std::vector<std::string>& names,
                   int64_t use, int64_t rank, int64_t part_rows, int64_t cols) {
  Adapter adapter;
  adapter.rank = rank;
  const std::string number = "." + std::to_string(use);
  std::vector<StackedModule> low_rank;
  for (const std::string& name : names) low_rank.push_back({name + number + ".0", rank});
  adapter.a = AddStacked(plan, prefix, "adapter" + number, low_rank, cols, false);
  for (const std::string& name : names) {
    const std::string module = prefix + "." + name + number + ".1";
    adapter.b.push_back(plan.AddMatrix(LabelOf(module), module, part_rows, rank));
  }
  return adapter;
}

// The blocks of one use of a shared block, whose result goes to the side stream.
void AddUse(Plan& plan, int64_t layer, const SharedBlock& shared, const Sizes& sizes, int64_t use) {
  Attention attention = shared.attention;
  if (sizes.attention_adapters) {
    attention.qkv_adapter =
        AddAdapter(plan, shared.prefix + ".self_attn",
                   {"linear_q_adapter_list", "linear_k_adapter_list", "linear_v_adapter_list"}, use,
                   sizes.adapter_rank, attention.heads * attention.head_dim, 2 * plan.hidden);
  }
  DenseMlp mlp = shared.mlp;
  mlp.gate_up_adapter =
      AddAdapter(plan, shared.prefix + ".feed_forward", {"gate_up_proj_adapter_list"}, use,
                 sizes.adapter_rank, 2 * sizes.intermediate, plan.hidden);
  Block attend;
  attend.layer = layer;
  attend.input = BlockInput::kResidualAndEmbedding;
  attend.pre_norm = shared.input_norm;
  attend.mixers = {std::move(attention)};
  attend.to_side = true;
  plan.blocks.push_back(std::move(attend));
  Block feed;
  feed.layer = layer;
  feed.input = BlockInput::kSide;
  feed.pre_norm = shared.mlp_norm;
  feed.mixers = {std::move(mlp)};
  feed.to_side = true;
  plan.blocks.push_back(std::move(feed));
}

// Whatever max_position_embeddings says.
constexpr int64_t kLongContextPositions = 16384;

bool LongContext(const JsonObject& config) { return config.Bool({"use_long_context"}, false); }

// The base is stretched as by a factor of eight in the positions.
Rope ReadLongRope(const JsonObject& config, int64_t head_dim) {
  if (config.Has("rope_parameters")) {
    Fail(config.where(),
         ": the field use_long_context is true beside rope_parameters, which does not say whether "
         "its rope_theta is stretched already; with rope_theta alone it is implemented.");
  }
  const auto dim = static_cast<double>(head_dim);
  const double theta = ReadRope(config, head_dim).theta;
  const Json stretched = {{"rope_theta", theta * std::pow(8.0, dim / (dim - 2))}};
  return ReadRope(JsonObject(stretched, config.where()), head_dim);
}

Sizes ReadSizes(const JsonObject& config, int64_t hidden) {
  Sizes sizes;
  RequireInt(config, "attention_hidden_size", 2 * hidden);
  sizes.attention = ReadAttentionSizes(config, 2 * hidden);
  const Attention& attention = sizes.attention;
  // The scale is that of heads half as wide, as if they read the hidden state alone.
  sizes.attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim) / 2);
  if (config.Bool({"use_mem_rope"}, false)) {
    sizes.attention.rope = LongContext(config) ? ReadLongRope(config, attention.head_dim)
                                               : ReadRope(config, attention.head_dim);
  }
  sizes.attention_adapters = config.Bool({"use_shared_attention_adapter"}, false);
  if (sizes.attention_adapters && attention.kv_heads != attention.heads) {
    Fail(config.where(), ": the field num_key_value_heads is ", attention.kv_heads,
         "; with use_shared_attention_adapter it should be num_attention_heads (", attention.heads,
         ").");
  }
  sizes.intermediate = ReadSize(config, {"intermediate_size"}, 4 * hidden);
  sizes.activation = ReadAnyActivation(config, {"hidden_act"}, "gelu");
  sizes.adapter_rank = ReadSize(config, {"adapter_rank"}, 128);
  sizes.bias = config.Bool({"add_bias_linear"}, false);
  sizes.eps = ReadEps(config, {"rms_norm_eps"}, 1e-5);
  return sizes;
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "zamba2";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = config.Int({"hidden_size"}, 1, kMaxSize / 4);
  plan.max_positions = LongContext(config) ? kLongContextPositions : ReadMaxPositions(config, 4096);
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const std::vector<bool> hybrid = ReadHybridLayers(config, layers);
  const int64_t shared_blocks = config.Int({"num_mem_blocks"}, 1, kMaxLayers, 1);
  const Sizes sizes = ReadSizes(config, plan.hidden);
  const Mamba2 mamba = ReadMamba(config, plan.hidden);
  Mamba2Options mamba_options;
  mamba_options.proj_bias = sizes.bias;
  mamba_options.norm_groups = mamba.groups;
  mamba_options.eps = 1e-5f;

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.final_layernorm", "lm_head", tied,
                      sizes.eps);
  std::vector<SharedBlock> shared;
  int64_t uses = 0;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = "model.layers." + std::to_string(layer);
    if (!hybrid[static_cast<size_t>(layer)]) {
      plan.blocks.push_back(MakeBlock(plan, layer, prefix + ".input_layernorm", sizes.eps,
                                      {AddMamba2(plan, prefix + ".mamba", mamba, mamba_options)},
                                      1));
      continue;
    }
    if (uses < shared_blocks) {
      shared.push_back(AddSharedBlock(plan, prefix + ".shared_transformer", sizes));
    } else {
      // Some writers store a shared block again below every layer.
      plan.ignored_tensors.push_back(prefix + ".shared_transformer.*");
    }
    AddUse(plan, layer, shared[static_cast<size_t>(uses % shared_blocks)], sizes, uses);
    ++uses;
    Block block =
        MakeBlock(plan, layer, prefix + ".mamba_decoder.input_layernorm", sizes.eps,
                  {AddMamba2(plan, prefix + ".mamba_decoder.mamba", mamba, mamba_options)}, 1);
    block.input = BlockInput::kResidualPlusSide;
    block.side_projection = AddLinear(plan, prefix + ".linear", plan.hidden, plan.hidden, false);
    plan.blocks.push_back(std::move(block));
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_zamba2;
const Family kFamily_zamba2 = {
    "zamba2",
    "Zamba2: Mamba-2 and shared transformer blocks with adapters",
    {"Zamba2ForCausalLM"},
    Build,
};

}  // namespace adder
