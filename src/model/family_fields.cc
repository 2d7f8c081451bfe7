#include "model/family_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "core/error.h"

namespace adder {
namespace {

// Field names as they appear in messages.
std::string Joined(FieldNames keys) {
  std::string text;
  for (std::string_view key : keys) {
    if (!text.empty()) text += " / ";
    text += key;
  }
  return text;
}

bool FitsFloat(double value) {
  return std::isfinite(value) && std::abs(value) <= std::numeric_limits<float>::max();
}

}  // namespace

int64_t ReadSize(const JsonObject& config, FieldNames keys, std::optional<int64_t> default_value) {
  return config.Int(keys, 1, kMaxSize, default_value);
}

int64_t ReadLayerCount(const JsonObject& config, FieldNames keys) {
  return config.Int(keys, 1, kMaxLayers);
}

int64_t ReadVocab(const JsonObject& config, FieldNames keys) {
  return config.Int(keys, 1, kMaxRows);
}

double ReadPositive(const JsonObject& config, FieldNames keys,
                    std::optional<double> default_value) {
  const double value = config.Number(keys, default_value);
  if (!FitsFloat(value) || value <= 0) {
    Fail(config.where(), ": the field ", Joined(keys), " is ", value,
         ", it should be a positive number.");
  }
  return value;
}

float ReadScale(const JsonObject& config, FieldNames keys, std::optional<double> default_value) {
  const double value = config.Number(keys, default_value);
  if (!FitsFloat(value)) {
    Fail(config.where(), ": the field ", Joined(keys), " is ", value,
         ", it should be a finite 32-bit number.");
  }
  return static_cast<float>(value);
}

float ReadInverseScale(const JsonObject& config, FieldNames keys, double default_value) {
  const double value = config.Number(keys, default_value);
  if (!FitsFloat(value) || !FitsFloat(1 / value)) {
    Fail(config.where(), ": the field ", Joined(keys), " is ", value,
         ", it should be finite and not zero.");
  }
  return static_cast<float>(1 / value);
}

float ReadEps(const JsonObject& config, FieldNames keys, double default_value) {
  const double value = config.Number(keys, default_value);
  if (!FitsFloat(value) || value < 0) {
    Fail(config.where(), ": the field ", Joined(keys), " is ", value,
         ", it should be a small number of at least 0.");
  }
  return static_cast<float>(value);
}

Activation ReadActivation(const JsonObject& config, FieldNames keys) {
  const std::string name = config.String(keys, "silu");
  if (name != "silu" && name != "swish") {
    Fail(config.where(), ": the field ", Joined(keys), " is \"", name,
         "\"; only \"silu\" is implemented for this family.");
  }
  return Activation::kSilu;
}

Activation ReadAnyActivation(const JsonObject& config, FieldNames keys,
                             std::string_view default_name) {
  const std::string name = config.String(keys, std::string(default_name));
  if (name == "silu" || name == "swish") return Activation::kSilu;
  if (name == "gelu") return Activation::kGelu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::kGeluTanh;
  if (name == "relu2") return Activation::kRelu2;
  Fail(config.where(), ": the field ", Joined(keys), " is \"", name,
       "\"; \"silu\", \"gelu\", \"gelu_pytorch_tanh\" and \"relu2\" are implemented.");
}

std::pair<float, float> ReadTimeStepLimit(const JsonObject& config, FieldNames keys) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  if (config.Find(keys) == nullptr) return {0.0f, kInfinity};
  const std::vector<double> limits = config.Numbers(keys);
  // Comparisons are written so that NaN fails.
  if (limits.size() != 2 || !(limits[0] >= 0) || !FitsFloat(limits[0]) ||
      !(limits[1] >= limits[0])) {
    Fail(config.where(), ": the field ", Joined(keys),
         " should hold two numbers, the smallest and the largest time step, with 0 <= smallest <= "
         "largest.");
  }
  const float max = FitsFloat(limits[1]) ? static_cast<float>(limits[1]) : kInfinity;
  return {static_cast<float>(limits[0]), max};
}

std::vector<LayerKind> ReadLayerTypes(const JsonObject& config, FieldNames keys, int64_t layers,
                                      LayerKind default_kind) {
  if (config.Find(keys) == nullptr) {
    return std::vector<LayerKind>(static_cast<size_t>(layers), default_kind);
  }
  const std::vector<std::string> types = config.Strings(keys);
  if (static_cast<int64_t>(types.size()) != layers) {
    Fail(config.where(), ": the field ", Joined(keys), " has ", types.size(),
         " entries, but the model has ", layers, " layers.");
  }
  std::vector<LayerKind> kinds;
  for (const std::string& type : types) {
    if (type == "mamba" || type == "mamba2" || type == "linear_attention") {
      kinds.push_back(LayerKind::kMamba);
    } else if (type == "attention" || type == "full_attention") {
      kinds.push_back(LayerKind::kAttention);
    } else {
      Fail(config.where(), ": the field ", Joined(keys), " has the layer type \"", type,
           "\"; this family has \"mamba\" and \"attention\".");
    }
  }
  return kinds;
}

std::vector<LayerKind> ReadAgreedLayerTypes(const JsonObject& config, int64_t layers,
                                            AgreedLayers<std::vector<LayerKind>> agreed) {
  for (const std::string_view field : {"layers_block_type", "layer_types"}) {
    if (config.Has(field)) {
      agreed.Add(field, ReadLayerTypes(config, {field}, layers, LayerKind::kMamba));
    }
  }
  return agreed.get() ? *agreed.get()
                      : std::vector<LayerKind>(static_cast<size_t>(layers), LayerKind::kMamba);
}

std::vector<bool> ReadExpertLayers(const JsonObject& config, int64_t layers) {
  const int64_t step = ReadSize(config, {"decoder_sparse_step"}, 1);
  std::vector<bool> sparse = ReadListedLayers(config, "mlp_only_layers", layers);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const auto i = static_cast<size_t>(layer);
    sparse[i] = !sparse[i] && (layer + 1) % step == 0;
  }
  return sparse;
}

void RequireBool(const JsonObject& config, std::string_view key, bool expected) {
  if (config.Bool({key}, expected) != expected) {
    Fail(config.where(), ": the field ", key, " is ", expected ? "false" : "true", "; only ",
         expected ? "true" : "false", " is implemented for this family.");
  }
}

void RequireInt(const JsonObject& config, std::string_view key, int64_t expected) {
  const int64_t value = config.Int({key}, std::numeric_limits<int64_t>::min(),
                                   std::numeric_limits<int64_t>::max(), expected);
  if (value != expected) {
    Fail(config.where(), ": the field ", key, " is ", value, "; only ", expected,
         " is implemented for this family.");
  }
}

void RequireString(const JsonObject& config, std::string_view key, std::string_view expected) {
  const std::string value = config.String({key}, std::string(expected));
  if (value != expected) {
    Fail(config.where(), ": the field ", key, " is \"", value, "\"; only \"", expected,
         "\" is implemented for this family.");
  }
}

void RequireMultiple(const JsonObject& config, std::string_view value_name, int64_t value,
                     std::string_view divisor_name, int64_t divisor) {
  if (value % divisor != 0) {
    Fail(config.where(), ": the field ", value_name, " (", value, ") should be a multiple of ",
         divisor_name, " (", divisor, ").");
  }
}

bool ReadTied(const JsonObject& config, FieldNames keys, const TensorNames& names,
              const std::string& head_tensor) {
  return config.Bool(keys, !names.HasOptional(head_tensor));
}

std::string LabelOf(const std::string& prefix) {
  for (const std::string_view root : {"model.", "backbone."}) {
    if (prefix.starts_with(root)) return prefix.substr(root.size());
  }
  return prefix;
}

RmsNorm AddNorm(Plan& plan, const std::string& prefix, int64_t size, float eps) {
  RmsNorm norm;
  norm.weight = plan.AddVector(LabelOf(prefix), prefix + ".weight", size);
  norm.eps = eps;
  return norm;
}

void AddOneToNorms(Plan& plan) {
  const auto add_one = [&plan](const std::optional<RmsNorm>& norm) {
    if (norm) {
      plan.vectors[static_cast<size_t>(norm->weight)].transform = VectorTransform::kPlusOne;
    }
  };
  add_one(plan.final_norm);
  for (const Block& block : plan.blocks) {
    if (!block.skip_pre_norm) add_one(block.pre_norm);
    for (const Mixer& mixer : block.mixers) {
      const auto* attention = std::get_if<Attention>(&mixer);
      if (attention == nullptr) continue;
      add_one(attention->q_norm);
      add_one(attention->k_norm);
    }
  }
}

Linear AddLinear(Plan& plan, const std::string& prefix, int64_t rows, int64_t cols, bool bias) {
  Linear linear;
  linear.weight = plan.AddMatrix(LabelOf(prefix), prefix, rows, cols);
  if (bias) linear.bias = plan.AddVector(LabelOf(prefix) + " bias", prefix + ".bias", rows);
  return linear;
}

Linear AddStacked(Plan& plan, const std::string& prefix, const std::string& label,
                  const std::vector<StackedModule>& modules, int64_t cols, bool bias) {
  MatrixRef matrix;
  matrix.label = LabelOf(prefix) + "." + label;
  matrix.cols = cols;
  VectorRef biases;
  biases.label = matrix.label + " bias";
  for (const StackedModule& module : modules) {
    MatrixPart part;
    part.module = prefix + "." + module.name;
    part.rows = module.rows;
    part.row_count = module.rows;
    matrix.rows += module.rows;
    biases.parts.push_back({part.module + ".bias", {Shape{module.rows}}});
    matrix.parts.push_back(std::move(part));
  }
  Linear linear;
  linear.weight = plan.AddMatrix(std::move(matrix));
  if (bias) linear.bias = plan.AddVector(std::move(biases));
  return linear;
}

void AddEmbeddingAndHead(Plan& plan, const std::string& embedding, const std::string& norm,
                         const std::string& head, bool tied, float eps) {
  plan.embedding = plan.AddMatrix(LabelOf(embedding), embedding, plan.vocab, plan.hidden);
  plan.final_norm = AddNorm(plan, norm, plan.hidden, eps);
  if (tied) {
    plan.head.weight = plan.embedding;
    // Some writers store the shared tensor a second time.
    plan.ignored_tensors.push_back(head + ".*");
  } else {
    plan.head = AddLinear(plan, head, plan.vocab, plan.hidden, false);
  }
}

Attention AddAttention(Plan& plan, const std::string& prefix, const Attention& sizes, bool bias) {
  Attention attention = sizes;
  const int64_t q_rows = sizes.heads * sizes.head_dim;
  const int64_t kv_rows = sizes.kv_heads * sizes.head_dim;
  attention.qkv =
      AddStacked(plan, prefix, "qkv",
                 {{"q_proj", q_rows}, {"k_proj", kv_rows}, {"v_proj", kv_rows}}, plan.hidden, bias);
  attention.output = AddLinear(plan, prefix + ".o_proj", plan.hidden, q_rows, bias);
  // Old converters wrote the rotary frequencies, which follow from the config.
  plan.ignored_tensors.push_back(prefix + ".rotary_emb.inv_freq");
  return attention;
}

void AddHeadNorms(Plan& plan, const std::string& prefix, const std::string& q_name,
                  const std::string& k_name, float eps, Attention& attention) {
  attention.q_norm = AddNorm(plan, prefix + "." + q_name, attention.head_dim, eps);
  attention.k_norm = AddNorm(plan, prefix + "." + k_name, attention.head_dim, eps);
}

DenseMlp AddGateUpMlp(Plan& plan, const std::string& prefix, int64_t intermediate,
                      Activation activation, bool bias) {
  DenseMlp mlp;
  mlp.intermediate = intermediate;
  mlp.activation = activation;
  mlp.gate_up =
      AddStacked(plan, prefix, "gate_up", {{"gate_proj", intermediate}, {"up_proj", intermediate}},
                 plan.hidden, bias);
  mlp.down = AddLinear(plan, prefix + ".down_proj", plan.hidden, intermediate, bias);
  return mlp;
}

DenseMlp AddUpMlp(Plan& plan, const std::string& prefix, int64_t intermediate,
                  Activation activation, bool bias) {
  DenseMlp mlp;
  mlp.intermediate = intermediate;
  mlp.activation = activation;
  mlp.gated = false;
  mlp.gate_up = AddLinear(plan, prefix + ".up_proj", intermediate, plan.hidden, bias);
  mlp.down = AddLinear(plan, prefix + ".down_proj", plan.hidden, intermediate, bias);
  return mlp;
}

DenseMlp AddFusedMlp(Plan& plan, const std::string& prefix, int64_t intermediate,
                     Activation activation) {
  DenseMlp mlp;
  mlp.intermediate = intermediate;
  mlp.activation = activation;
  mlp.gate_up = AddLinear(plan, prefix + ".input_linear", 2 * intermediate, plan.hidden, false);
  mlp.down = AddLinear(plan, prefix + ".output_linear", plan.hidden, intermediate, false);
  return mlp;
}

void AddExperts(Plan& plan, const std::string& label, const ExpertModules& modules, MoeMlp& moe) {
  const auto parts = static_cast<int64_t>(modules.inputs.size());
  const int64_t rows = moe.gated ? 2 * moe.intermediate : moe.intermediate;
  for (int64_t expert = 0; expert < moe.experts; ++expert) {
    const std::string number = std::to_string(expert);
    const auto part = [&](const std::string& name, int64_t part_rows) {
      MatrixPart result;
      result.rows = part_rows;
      result.row_count = part_rows;
      if (modules.stacked) {
        result.module = modules.prefix + "." + name;
        result.bare_name = modules.bare;
        result.experts = moe.experts;
        result.expert = expert;
      } else {
        result.module = modules.prefix + "." + number + "." + name;
      }
      return result;
    };
    const std::string expert_label = label + ".experts." + number;
    MatrixRef gate_up{expert_label + (moe.gated ? ".gate_up" : ".up"), rows, plan.hidden, {}};
    for (const std::string& name : modules.inputs) {
      gate_up.parts.push_back(part(name, rows / parts));
    }
    moe.gate_up.push_back(plan.AddMatrix(std::move(gate_up)));
    moe.down.push_back(plan.AddMatrix(MatrixRef{
        expert_label + ".down", plan.hidden, moe.intermediate, {part(modules.down, plan.hidden)}}));
  }
}

void AddGateUpExperts(Plan& plan, const std::string& prefix, const TensorNames& names,
                      MoeMlp& moe) {
  ExpertModules modules;
  modules.stacked = names.Uses(prefix + ".switch_mlp.gate_proj.weight", true);
  modules.prefix = prefix + (modules.stacked ? ".switch_mlp" : ".experts");
  modules.inputs = {"gate_proj", "up_proj"};
  modules.down = "down_proj";
  AddExperts(plan, LabelOf(prefix), modules, moe);
}

Mamba2 AddMamba2(Plan& plan, const std::string& prefix, const Mamba2& sizes,
                 const Mamba2Options& options) {
  Mamba2 mamba = sizes;
  const std::string label = LabelOf(prefix);
  const int64_t channels = sizes.conv_channels();
  mamba.in_proj =
      AddLinear(plan, prefix + ".in_proj", sizes.in_proj_rows(), plan.hidden, options.proj_bias);
  // Hugging Face files have the taps last, MLX files the single input channel.
  mamba.conv_weight = plan.AddVector(
      VectorRef{label + ".conv1d",
                {VectorPart{prefix + ".conv1d.weight",
                            {{channels, 1, sizes.d_conv}, {channels, sizes.d_conv, 1}}}},
                VectorTransform::kConvTimeMajor});
  if (options.conv_bias) {
    mamba.conv_bias = plan.AddVector(label + ".conv1d bias", prefix + ".conv1d.bias", channels);
  }
  mamba.dt_bias = plan.AddVector(label + ".dt_bias", prefix + ".dt_bias", sizes.heads);
  mamba.a = plan.AddVector(label + ".A_log", prefix + ".A_log", sizes.heads,
                           VectorTransform::kNegativeExp);
  mamba.d = plan.AddVector(label + ".D", prefix + ".D", sizes.heads);
  if (options.gated_norm) {
    mamba.gated_norm = AddNorm(plan, prefix + ".norm", sizes.inner(), options.eps);
    mamba.gated_norm->groups = options.norm_groups;
  }
  mamba.out_proj = AddLinear(plan, prefix + ".out_proj", plan.hidden, sizes.inner(),
                             options.out_proj_bias.value_or(options.proj_bias));
  return mamba;
}

Attention ReadAttentionSizes(const JsonObject& config, int64_t hidden,
                             std::optional<int64_t> default_head_dim) {
  Attention attention;
  attention.heads = ReadSize(config, {"num_attention_heads"});
  attention.kv_heads = ReadSize(config, {"num_key_value_heads"}, attention.heads);
  RequireMultiple(config, "num_attention_heads", attention.heads, "num_key_value_heads",
                  attention.kv_heads);
  const bool stated = config.Find({"head_dim", "attention_head_dim"}) != nullptr;
  if (!stated && !default_head_dim) {
    RequireMultiple(config, "hidden_size", hidden, "num_attention_heads", attention.heads);
  }
  attention.head_dim = config.Int({"head_dim", "attention_head_dim"}, 1, kMaxHeadDim,
                                  default_head_dim.value_or(hidden / attention.heads));
  if (attention.head_dim > kMaxHeadDim) {
    Fail(config.where(), ": hidden_size / num_attention_heads is ", attention.head_dim,
         ", larger than ", kMaxHeadDim, ".");
  }
  return attention;
}

std::vector<bool> ReadSlidingLayers(const JsonObject& config, int64_t layers) {
  if (!config.Has("layer_types")) return std::vector<bool>(static_cast<size_t>(layers), false);
  return ReadLayersOfType(config, "layer_types", layers, "sliding_attention", "full_attention");
}

std::vector<int64_t> ReadWindows(const JsonObject& config, int64_t layers, int64_t max_positions) {
  const std::vector<bool> sliding = ReadSlidingLayers(config, layers);
  const bool any = std::find(sliding.begin(), sliding.end(), true) != sliding.end();
  if (!any) RequireBool(config, "use_sliding_window", false);
  if (any && !config.Bool({"use_sliding_window"}, true)) {
    Fail(config.where(),
         ": the field use_sliding_window is false, but layer_types has \"sliding_attention\" "
         "layers.");
  }
  // Switched off by name, a window may be any.
  if (!any && !config.Has("layer_types") && !config.Has("use_sliding_window") &&
      config.Has("sliding_window") && ReadSize(config, {"sliding_window"}) < max_positions) {
    Fail(config.where(), ": the field sliding_window is ", ReadSize(config, {"sliding_window"}),
         ", but no layer_types say which layers attend in that window.");
  }
  std::vector<int64_t> windows;
  for (const bool slides : sliding) {
    windows.push_back(slides ? ReadSize(config, {"sliding_window"}) : 0);
  }
  return windows;
}

int64_t ReadSwitchedWindow(const JsonObject& config) {
  if (!config.Bool({"use_sliding_window"}, false)) return 0;
  if (config.value().contains("sliding_window") && !config.Has("sliding_window")) return 0;
  return ReadSize(config, {"sliding_window"}, 4096);
}

HunyuanAttention ReadHunyuanAttention(const JsonObject& config, int64_t hidden) {
  // Options of the original code, which no published model uses.
  RequireBool(config, "use_cla", false);
  RequireBool(config, "use_mla", false);
  RequireBool(config, "use_rotary_pos_emb", true);
  RequireBool(config, "position_embedding_xdrope", false);
  RequireBool(config, "mlp_bias", false);
  HunyuanAttention hunyuan;
  hunyuan.sizes = ReadAttentionSizes(config, hidden);
  // Implementations differ in which of the two they read.
  const int64_t other = config.Int({"attention_head_dim"}, 1, kMaxHeadDim, hunyuan.sizes.head_dim);
  if (other != hunyuan.sizes.head_dim) {
    Fail(config.where(), ": the field attention_head_dim is ", other, ", but head_dim is ",
         hunyuan.sizes.head_dim, ".");
  }
  hunyuan.sizes.scale = 1.0f / std::sqrt(static_cast<float>(hunyuan.sizes.head_dim));
  hunyuan.sizes.rope =
      ReadRope(config, hunyuan.sizes.head_dim, std::nullopt, 10000.0, /*knows_alpha=*/true);
  hunyuan.bias = config.Bool({"attention_bias"}, false);
  hunyuan.head_norms = config.Bool({"use_qk_norm"}, true);
  return hunyuan;
}

Attention AddHunyuanAttention(Plan& plan, const std::string& prefix,
                              const HunyuanAttention& hunyuan, float eps) {
  Attention attention = AddAttention(plan, prefix, hunyuan.sizes, hunyuan.bias);
  if (hunyuan.head_norms) {
    AddHeadNorms(plan, prefix, "query_layernorm", "key_layernorm", eps, attention);
    attention.qk_norm_after_rope = true;
  }
  return attention;
}

Mamba2 ReadMamba2Sizes(const JsonObject& config, int64_t hidden) {
  Mamba2 mamba;
  mamba.heads = ReadSize(config, {"mamba_n_heads"});
  const char* const inner_name =
      config.Has("mamba_d_ssm") ? "mamba_d_ssm" : "mamba_expand x hidden_size";
  const int64_t inner = config.Has("mamba_d_ssm") ? ReadSize(config, {"mamba_d_ssm"})
                                                  : hidden * ReadSize(config, {"mamba_expand"}, 2);
  const Json* head_dim = config.Find({"mamba_d_head"});
  if (head_dim == nullptr || *head_dim == "auto") {
    RequireMultiple(config, inner_name, inner, "mamba_n_heads", mamba.heads);
    mamba.head_dim = inner / mamba.heads;
  } else {
    mamba.head_dim = ReadSize(config, {"mamba_d_head"});
    if (mamba.inner() != inner) {
      Fail(config.where(), ": mamba_n_heads x mamba_d_head is ", mamba.inner(), ", but ",
           inner_name, " is ", inner, ".");
    }
  }
  mamba.d_state = ReadSize(config, {"mamba_d_state"});
  mamba.groups = ReadSize(config, {"mamba_n_groups"}, 1);
  RequireMultiple(config, "mamba_n_heads", mamba.heads, "mamba_n_groups", mamba.groups);
  mamba.d_conv = config.Int({"mamba_d_conv"}, 1, 1024, 4);
  mamba.chunk = ReadSize(config, {"mamba_chunk_size"}, 256);
  std::tie(mamba.dt_min, mamba.dt_max) = ReadTimeStepLimit(config, {"time_step_limit"});
  return mamba;
}

Block MakeBlock(Plan& plan, int64_t layer, const std::string& norm_prefix, float eps,
                std::vector<Mixer> mixers, float residual_scale) {
  Block block;
  block.layer = layer;
  block.pre_norm = AddNorm(plan, norm_prefix, plan.hidden, eps);
  block.mixers = std::move(mixers);
  block.residual_scale = residual_scale;
  return block;
}

}  // namespace adder
