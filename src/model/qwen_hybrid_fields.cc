#include "model/qwen_hybrid_fields.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"

namespace adder {
namespace {

// Rows [begin, begin + count) of a module of `rows` rows.
MatrixPart RowsOf(const std::string& module, int64_t rows, int64_t begin, int64_t count) {
  MatrixPart part;
  part.module = module;
  part.rows = rows;
  part.row_begin = begin;
  part.row_count = count;
  return part;
}

Linear AddParts(Plan& plan, const std::string& label, std::vector<MatrixPart> parts) {
  int64_t rows = 0;
  for (const MatrixPart& part : parts) rows += part.row_count;
  Linear linear;
  linear.weight = plan.AddMatrix(MatrixRef{label, rows, plan.hidden, std::move(parts)});
  return linear;
}

class Builder {
 public:
  Builder(const QwenHybridForm& form, const JsonObject& config, const TensorNames& names)
      : form_(form), config_(config), names_(names) {}

  Plan Run(bool tied_by_default) {
    plan_.family = form_.family;
    plan_.vocab = ReadVocab(config_, {"vocab_size"});
    plan_.hidden = ReadSize(config_, {"hidden_size"});
    plan_.max_positions = ReadMaxPositions(config_, 32768);
    layers_ = ReadLayerCount(config_, {"num_hidden_layers"});
    eps_ = ReadEps(config_, {"rms_norm_eps"}, 1e-6);
    activation_ = ReadActivation(config_, {"hidden_act"});
    ReadDelta();
    ReadAttention();
    ReadMlps();
    const std::vector<LayerKind> kinds = ReadKinds();

    // Tensor names begin with one of three roots.
    std::string root = "model";
    std::string head = "lm_head";
    if (!form_.fused_inputs && names_.Uses("language_model.model.embed_tokens.weight", true)) {
      root = "language_model.model";
      head = "language_model.lm_head";
    } else if (!form_.fused_inputs && names_.Uses("model.language_model.norm.weight", false)) {
      root = "model.language_model";
    }
    const bool tied = config_.Bool({"tie_word_embeddings"}, tied_by_default);
    AddEmbeddingAndHead(plan_, root + ".embed_tokens", root + ".norm", head, tied, eps_);
    for (int64_t layer = 0; layer < layers_; ++layer) {
      const std::string prefix = root + ".layers." + std::to_string(layer);
      const bool is_attention = kinds[static_cast<size_t>(layer)] == LayerKind::kAttention;
      Mixer mixer = is_attention ? Mixer(AddGatedAttention(prefix + ".self_attn"))
                                 : Mixer(AddDelta(prefix + ".linear_attn"));
      plan_.blocks.push_back(
          MakeBlock(plan_, layer, prefix + ".input_layernorm", eps_, {std::move(mixer)}, 1));
      plan_.blocks.push_back(MakeBlock(plan_, layer, prefix + ".post_attention_layernorm", eps_,
                                       AddMlp(prefix + ".mlp", layer), 1));
    }
    // Hugging Face files store w of norms with (1 + w) applied, MLX files 1 + w. The norm behind
    // the delta rule is a plain one in both.
    if (std::find(kinds.begin(), kinds.end(), LayerKind::kMamba) == kinds.end()) {
      Fail(config_.where(), ": the fields layer_types / full_attention_interval give no layer a ",
           "linear attention; a model without is not one of this family.");
    }
    if (!is_mlx_) AddOneToNorms(plan_);
    // Heads that predict further tokens, and the vision part.
    for (const char* other : {"mtp.*", "model.mtp.*", "language_model.mtp.*", "model.visual.*",
                              "visual.*", "vision_tower.*"}) {
      plan_.ignored_tensors.push_back(other);
    }
    ValidatePlan(plan_);
    return std::move(plan_);
  }

 private:
  void ReadDelta() {
    delta_.key_heads = ReadSize(config_, {"linear_num_key_heads"}, 16);
    delta_.value_heads = ReadSize(config_, {"linear_num_value_heads"}, 32);
    RequireMultiple(config_, "linear_num_value_heads", delta_.value_heads, "linear_num_key_heads",
                    delta_.key_heads);
    delta_.key_dim = ReadSize(config_, {"linear_key_head_dim"}, 128);
    delta_.value_dim = ReadSize(config_, {"linear_value_head_dim"}, 128);
    delta_.d_conv = config_.Int({"linear_conv_kernel_dim"}, 1, 1024, 4);
    delta_.query_scale = 1.0f / std::sqrt(static_cast<float>(delta_.key_dim));
  }

  void ReadAttention() {
    attention_ = ReadAttentionSizes(config_, plan_.hidden, 256);
    attention_.scale = 1.0f / std::sqrt(static_cast<float>(attention_.head_dim));
    // With text alone, the three sections of a multimodal rotary embedding count alike.
    attention_.rope = ReadRope(config_, attention_.head_dim, 0.25);
    attention_.output_gate = config_.Bool({"attn_output_gate"}, true);
    RequireBool(config_, "attention_bias", false);
    RequireBool(config_, "use_sliding_window", false);
  }

  void ReadMlps() {
    sparse_.assign(static_cast<size_t>(layers_), form_.has_experts);
    if (form_.has_experts) {
      sparse_ = ReadExpertLayers(config_, layers_);
      moe_.experts =
          config_.Int({"num_experts", "num_local_experts"}, 1, kMaxExpertsInAll / layers_);
      moe_.top_k = config_.Int({"num_experts_per_tok"}, 1, moe_.experts);
      moe_.intermediate = ReadSize(config_, {"moe_intermediate_size"});
      moe_.activation = activation_;
      moe_.routing.normalize = config_.Bool({"norm_topk_prob"}, true);
      shared_ = ReadSize(config_, {"shared_expert_intermediate_size"});
    }
    if (std::find(sparse_.begin(), sparse_.end(), false) != sparse_.end()) {
      intermediate_ = ReadSize(config_, {"intermediate_size"});
    }
  }

  // layer_types, or attention in every full_attention_interval-th layer.
  std::vector<LayerKind> ReadKinds() const {
    if (config_.Has("layer_types")) {
      return ReadLayerTypes(config_, {"layer_types"}, layers_, LayerKind::kMamba);
    }
    const int64_t interval = ReadSize(config_, {"full_attention_interval"}, 4);
    std::vector<LayerKind> kinds;
    for (int64_t layer = 0; layer < layers_; ++layer) {
      kinds.push_back((layer + 1) % interval == 0 ? LayerKind::kAttention : LayerKind::kMamba);
    }
    return kinds;
  }

  // in_proj rows q | k | v | b | a | z, in whose modules they lie group by group: one key head with
  // its value heads.
  std::vector<MatrixPart> FusedInputs(const std::string& prefix) const {
    const GatedDelta& m = delta_;
    const int64_t values = m.value_heads / m.key_heads;
    const int64_t group = 2 * m.key_dim + 2 * values * m.value_dim;
    std::vector<MatrixPart> parts;
    const auto add = [&](const char* name, int64_t stride, int64_t begin, int64_t count) {
      for (int64_t head = 0; head < m.key_heads; ++head) {
        parts.push_back(RowsOf(prefix + name, m.key_heads * stride, head * stride + begin, count));
      }
    };
    add(".in_proj_qkvz", group, 0, m.key_dim);
    add(".in_proj_qkvz", group, m.key_dim, m.key_dim);
    add(".in_proj_qkvz", group, 2 * m.key_dim, values * m.value_dim);
    add(".in_proj_ba", 2 * values, 0, values);
    add(".in_proj_ba", 2 * values, values, values);
    add(".in_proj_qkvz", group, 2 * m.key_dim + values * m.value_dim, values * m.value_dim);
    return parts;
  }

  GatedDelta AddDelta(const std::string& prefix) {
    GatedDelta delta = delta_;
    const std::string label = LabelOf(prefix);
    const auto whole = [&](const char* name, int64_t rows) {
      return RowsOf(prefix + name, rows, 0, rows);
    };
    delta.in_proj = AddParts(
        plan_, label + ".in_proj",
        form_.fused_inputs ? FusedInputs(prefix)
                           : std::vector<MatrixPart>{whole(".in_proj_qkv", delta.conv_channels()),
                                                     whole(".in_proj_b", delta.value_heads),
                                                     whole(".in_proj_a", delta.value_heads),
                                                     whole(".in_proj_z", delta.values())});
    const std::string conv = prefix + ".conv1d.weight";
    is_mlx_ = is_mlx_ || names_.HasMlxConvolution(conv);
    const int64_t channels = delta.conv_channels();
    delta.conv_weight = plan_.AddVector(
        VectorRef{label + ".conv1d",
                  {VectorPart{conv, {{channels, 1, delta.d_conv}, {channels, delta.d_conv, 1}}}},
                  VectorTransform::kConvTimeMajor});
    delta.dt_bias = plan_.AddVector(label + ".dt_bias", prefix + ".dt_bias", delta.value_heads);
    delta.a = plan_.AddVector(label + ".A_log", prefix + ".A_log", delta.value_heads,
                              VectorTransform::kNegativeExp);
    delta.norm = AddNorm(plan_, prefix + ".norm", delta.value_dim, eps_);
    delta.out_proj = AddLinear(plan_, prefix + ".out_proj", plan_.hidden, delta.values(), false);
    return delta;
  }

  // Rows of q_proj: per head q, then with an output gate the gate.
  Attention AddGatedAttention(const std::string& prefix) {
    Attention attention = attention_;
    const int64_t dim = attention.head_dim;
    const int64_t stride = attention.output_gate ? 2 * dim : dim;
    const auto heads = [&](int64_t begin) {
      std::vector<MatrixPart> parts;
      for (int64_t head = 0; head < attention.heads; ++head) {
        parts.push_back(
            RowsOf(prefix + ".q_proj", attention.heads * stride, head * stride + begin, dim));
      }
      return parts;
    };
    std::vector<MatrixPart> parts = heads(0);
    for (const char* name : {".k_proj", ".v_proj"}) {
      const int64_t rows = attention.kv_heads * dim;
      parts.push_back(RowsOf(prefix + name, rows, 0, rows));
    }
    if (attention.output_gate) {
      for (MatrixPart& part : heads(dim)) parts.push_back(std::move(part));
    }
    attention.qkv = AddParts(plan_, LabelOf(prefix) + ".qkv", std::move(parts));
    attention.output =
        AddLinear(plan_, prefix + ".o_proj", plan_.hidden, attention.heads * dim, false);
    AddHeadNorms(plan_, prefix, "q_norm", "k_norm", eps_, attention);
    return attention;
  }

  std::vector<Mixer> AddMlp(const std::string& prefix, int64_t layer) {
    if (!sparse_[static_cast<size_t>(layer)]) {
      return {AddGateUpMlp(plan_, prefix, intermediate_, activation_, false)};
    }
    MoeMlp moe = moe_;
    moe.router = AddLinear(plan_, prefix + ".gate", moe.experts, plan_.hidden, false);
    if (names_.Uses(prefix + ".experts.gate_up_proj", false) && !form_.fused_inputs) {
      ExpertModules modules;
      modules.prefix = prefix + ".experts";
      modules.stacked = true;
      modules.bare = true;
      modules.inputs = {"gate_up_proj"};
      modules.down = "down_proj";
      AddExperts(plan_, LabelOf(prefix), modules, moe);
    } else {
      AddGateUpExperts(plan_, prefix, names_, moe);
    }
    DenseMlp shared = AddGateUpMlp(plan_, prefix + ".shared_expert", shared_, activation_, false);
    shared.output_gate = AddLinear(plan_, prefix + ".shared_expert_gate", 1, plan_.hidden, false);
    return {std::move(moe), std::move(shared)};
  }

  const QwenHybridForm& form_;
  const JsonObject& config_;
  const TensorNames& names_;
  Plan plan_;
  int64_t layers_ = 0;
  float eps_ = 0;
  Activation activation_ = Activation::kSilu;
  GatedDelta delta_;
  Attention attention_;
  std::vector<bool> sparse_;  // layers with experts
  MoeMlp moe_;
  int64_t shared_ = 0;        // width of the shared expert
  int64_t intermediate_ = 0;  // of a layer without experts
  bool is_mlx_ = false;
};

}  // namespace

Plan BuildQwenHybrid(const QwenHybridForm& form, const JsonObject& config, bool tied_by_default,
                     const TensorNames& names) {
  return Builder(form, config, names).Run(tied_by_default);
}

Plan BuildQwenHybridText(const QwenHybridForm& form, const JsonObject& config,
                         const TensorNames& names) {
  const JsonObject text = ReadTextConfig(config);
  const bool tied = config.Bool({"tie_word_embeddings"}, false);
  // Implementations differ in which of the two they read.
  if (config.Has("tie_word_embeddings") && text.Bool({"tie_word_embeddings"}, tied) != tied) {
    Fail(config.where(), ": the field tie_word_embeddings is ", tied ? "true" : "false",
         ", but that of text_config is not.");
  }
  return BuildQwenHybrid(form, text, tied, names);
}

}  // namespace adder
