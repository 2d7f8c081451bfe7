// PLaMo 2: layers of Mamba-2 whose B, C and dt are selected by a projection of the convolved
// channels and normed, or of attention with norms of q and k, mostly over a window, each followed
// by a gated MLP; norms before and after every mixer. Hugging Face and MLX files use the same
// names.
//
// Norms are stored as the difference to an offset: 1 before mixers, 1/5 after token mixers and
// 1/5^1.5 after MLPs.
#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "model/config_parts.h"
#include "model/family_fields.h"

namespace adder {
namespace {

constexpr float kPostMixerOffset = 1.0f / 5.0f;
constexpr float kPostMlpOffset = 0.0894427191f;  // 1 / 5^1.5

// Every mamba_step-th layer, from the middle of the step on, is attention.
std::vector<LayerKind> ReadLayerKinds(const JsonObject& config, int64_t layers) {
  if (!config.Bool({"mamba_enabled"}, true)) {
    return std::vector<LayerKind>(static_cast<size_t>(layers), LayerKind::kAttention);
  }
  const int64_t step = config.Int({"mamba_step"}, 2, kMaxLayers, 2);
  std::vector<LayerKind> kinds;
  for (int64_t layer = 0; layer < layers; ++layer) {
    // A model with fewer layers than that has attention last.
    const bool attention = layers <= step / 2 ? layer == layers - 1 : layer % step == step / 2;
    kinds.push_back(attention ? LayerKind::kAttention : LayerKind::kMamba);
  }
  return kinds;
}

// How many positions each attention layer sees: those outside of full_attention_idx the last
// attention_window_size before a token and the token itself. 0: all, also where a model ends before
// its window would slide.
std::vector<int64_t> ReadPlamoWindows(const JsonObject& config, int64_t layers, int64_t positions) {
  const int64_t before = config.Int({"attention_window_size"}, 1, int64_t{1} << 40, 2048);
  std::vector<int64_t> windows;
  for (const bool full : ReadListedLayers(config, "full_attention_idx", layers)) {
    windows.push_back(!full && before + 1 < positions ? before + 1 : 0);
  }
  return windows;
}

RmsNorm AddOffsetNorm(Plan& plan, const std::string& prefix, float eps, float offset) {
  const RmsNorm norm = AddNorm(plan, prefix, plan.hidden, eps);
  plan.vectors[static_cast<size_t>(norm.weight)].offset = offset;
  return norm;
}

// A norm whose tensor is called PREFIX_norm_weight.
RmsNorm AddInnerNorm(Plan& plan, const std::string& prefix, int64_t size, float eps) {
  RmsNorm norm;
  norm.weight = plan.AddVector(LabelOf(prefix) + "_norm", prefix + "_norm_weight", size);
  norm.eps = eps;
  return norm;
}

// The norm of the heads of q or k, each with a weight of its own.
RmsNorm AddHeadNorm(Plan& plan, const std::string& tensor, int64_t heads, int64_t head_dim) {
  RmsNorm norm;
  norm.weight =
      plan.AddVector(VectorRef{LabelOf(tensor), {VectorPart{tensor, {{heads, head_dim}}}}});
  norm.eps = 1e-6f;  // whatever rms_norm_eps says
  norm.groups = heads;
  return norm;
}

Attention AddPlamoAttention(Plan& plan, const std::string& prefix, const Attention& sizes) {
  Attention attention = sizes;
  const int64_t q_rows = sizes.heads * sizes.head_dim;
  const int64_t kv_rows = sizes.kv_heads * sizes.head_dim;
  attention.qkv = AddLinear(plan, prefix + ".qkv_proj", q_rows + 2 * kv_rows, plan.hidden, false);
  attention.q_norm = AddHeadNorm(plan, prefix + ".q_weight", sizes.heads, sizes.head_dim);
  attention.k_norm = AddHeadNorm(plan, prefix + ".k_weight", sizes.kv_heads, sizes.head_dim);
  attention.output = AddLinear(plan, prefix + ".o_proj", plan.hidden, q_rows, false);
  return attention;
}

Mamba2 ReadMambaSizes(const JsonObject& config, int64_t hidden, int64_t layers) {
  Mamba2 mamba;
  // A head is two parts of in_proj; they count like experts.
  mamba.heads = config.Int({"mamba_num_heads"}, 1, kMaxExpertsInAll / layers, 64);
  mamba.head_dim = ReadSize(config, {"hidden_size_per_head"}, 128);
  mamba.d_state = ReadSize(config, {"mamba_d_state"}, 64);
  mamba.d_conv = config.Int({"mamba_d_conv"}, 1, 1024, 4);
  mamba.chunk = ReadSize(config, {"mamba_chunk_size"}, 256);
  mamba.selection.emplace();
  mamba.selection->dt_rank = std::max<int64_t>(64, hidden / 16);
  return mamba;
}

// The checkpoint's rows are z | x of one head after the other.
MatrixId AddInProj(Plan& plan, const std::string& module, const Mamba2& sizes) {
  MatrixRef matrix;
  matrix.label = LabelOf(module);
  matrix.rows = 2 * sizes.inner();
  matrix.cols = plan.hidden;
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t head = 0; head < sizes.heads; ++head) {
      matrix.parts.push_back(
          {module, matrix.rows, (2 * head + half) * sizes.head_dim, sizes.head_dim});
    }
  }
  return plan.AddMatrix(std::move(matrix));
}

Mamba2 AddPlamoMamba(Plan& plan, const std::string& prefix, const Mamba2& sizes, float eps) {
  Mamba2 mamba = sizes;
  Mamba2Selection& selection = *mamba.selection;
  mamba.in_proj.weight = AddInProj(plan, prefix + ".in_proj", sizes);
  // Hugging Face files have the taps last, MLX files the single input channel.
  mamba.conv_weight = plan.AddVector(
      VectorRef{LabelOf(prefix) + ".conv1d",
                {VectorPart{prefix + ".conv1d.weight",
                            {{sizes.inner(), 1, sizes.d_conv}, {sizes.inner(), sizes.d_conv, 1}}}},
                VectorTransform::kConvTimeMajor});
  selection.proj =
      AddLinear(plan, prefix + ".bcdt_proj", sizes.selection_rows(), sizes.inner(), false);
  selection.b_norm = AddInnerNorm(plan, prefix + ".B", sizes.d_state, eps);
  selection.c_norm = AddInnerNorm(plan, prefix + ".C", sizes.d_state, eps);
  selection.dt_norm = AddInnerNorm(plan, prefix + ".dt", selection.dt_rank, eps);
  selection.dt_proj = AddLinear(plan, prefix + ".dt_proj", sizes.heads, selection.dt_rank, false);
  const std::string label = LabelOf(prefix);
  mamba.dt_bias = plan.AddVector(label + ".dt_bias", prefix + ".dt_bias", sizes.heads);
  mamba.a = plan.AddVector(label + ".A_log", prefix + ".A_log", sizes.heads,
                           VectorTransform::kNegativeExp);
  mamba.d = plan.AddVector(label + ".D", prefix + ".D", sizes.heads);
  mamba.out_proj = AddLinear(plan, prefix + ".out_proj", plan.hidden, sizes.inner(), false);
  return mamba;
}

DenseMlp AddPlamoMlp(Plan& plan, const std::string& prefix, int64_t intermediate) {
  DenseMlp mlp;
  mlp.intermediate = intermediate;
  mlp.gate_up = AddLinear(plan, prefix + ".gate_up_proj", 2 * intermediate, plan.hidden, false);
  mlp.down = AddLinear(plan, prefix + ".down_proj", plan.hidden, intermediate, false);
  return mlp;
}

// The block of `mixer` between the norms PREFIX.pre_NAME_norm and PREFIX.post_NAME_norm.
void AddNormedBlock(Plan& plan, int64_t layer, const std::string& name, float eps, Mixer mixer,
                    float post_offset) {
  const std::string prefix = Concat("model.layers.layers.", layer, ".");
  Block block;
  block.layer = layer;
  block.pre_norm = AddOffsetNorm(plan, Concat(prefix, "pre_", name, "_norm"), eps, 1);
  block.mixers.push_back(std::move(mixer));
  block.post_norm = AddOffsetNorm(plan, Concat(prefix, "post_", name, "_norm"), eps, post_offset);
  plan.blocks.push_back(std::move(block));
}

Plan Build(const JsonObject& config, const TensorNames& names) {
  Plan plan;
  plan.family = "plamo2";
  plan.vocab = ReadVocab(config, {"vocab_size"});
  plan.hidden = ReadSize(config, {"hidden_size"});
  const int64_t layers = ReadLayerCount(config, {"num_hidden_layers"});
  const std::vector<LayerKind> kinds = ReadLayerKinds(config, layers);
  plan.max_positions = config.Int({"max_position_embeddings"}, 1, int64_t{1} << 40, 2048);
  const std::vector<int64_t> windows = ReadPlamoWindows(config, layers, plan.max_positions);
  const int64_t intermediate = ReadSize(config, {"intermediate_size"});
  const float eps = ReadEps(config, {"rms_norm_eps"}, 1e-6);
  if (config.Has("n_expert")) {
    Fail(config.where(),
         ": the field n_expert is set; experts are not implemented for this family.");
  }

  Attention attention;
  attention.heads = ReadSize(config, {"num_attention_heads"});
  attention.kv_heads = ReadSize(config, {"num_key_value_heads"}, 4);
  RequireMultiple(config, "num_attention_heads", attention.heads, "num_key_value_heads",
                  attention.kv_heads);
  attention.head_dim = config.Int({"hidden_size_per_head"}, 1, kMaxHeadDim, 128);
  attention.scale = 1.0f / std::sqrt(static_cast<float>(attention.head_dim));
  attention.rope = ReadRope(config, attention.head_dim);
  const Mamba2 mamba = ReadMambaSizes(config, plan.hidden, layers);

  const bool tied = ReadTied(config, {"tie_word_embeddings"}, names, "lm_head.weight");
  AddEmbeddingAndHead(plan, "model.embed_tokens", "model.norm", "lm_head", tied, eps);
  plan.vectors[static_cast<size_t>(plan.final_norm.weight)].offset = 1;
  for (int64_t layer = 0; layer < layers; ++layer) {
    const std::string prefix = Concat("model.layers.layers.", layer);
    Mixer mixer;
    if (kinds[static_cast<size_t>(layer)] == LayerKind::kMamba) {
      mixer = AddPlamoMamba(plan, prefix + ".mixer", mamba, eps);
    } else {
      attention.window = windows[static_cast<size_t>(layer)];
      mixer = AddPlamoAttention(plan, prefix + ".mixer", attention);
    }
    AddNormedBlock(plan, layer, "mixer", eps, std::move(mixer), kPostMixerOffset);
    AddNormedBlock(plan, layer, "mlp", eps, AddPlamoMlp(plan, prefix + ".mlp", intermediate),
                   kPostMlpOffset);
  }
  ValidatePlan(plan);
  return plan;
}

}  // namespace

extern const Family kFamily_plamo2;
const Family kFamily_plamo2 = {
    "plamo2",
    "PLaMo 2: Mamba-2 and attention with MLPs, norms after mixers",
    {"Plamo2ForCausalLM"},
    Build,
};

}  // namespace adder
