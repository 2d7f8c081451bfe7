// What the family files share: reading config fields that many model types have, and adding the
// common modules to a plan. A family file stays a short story told with these words.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.h"
#include "model/family.h"
#include "model/plan.h"
#include "model/rope_fields.h"

namespace adder {

// --- Reading config.json. Every function throws Error naming file and field. ---

using FieldNames = std::initializer_list<std::string_view>;

// A size such as hidden_size: in [1, kMaxSize].
int64_t ReadSize(const JsonObject& config, FieldNames keys,
                 std::optional<int64_t> default_value = std::nullopt);
// num_hidden_layers: in [1, kMaxLayers].
int64_t ReadLayerCount(const JsonObject& config, FieldNames keys);
// vocab_size: in [1, kMaxRows].
int64_t ReadVocab(const JsonObject& config, FieldNames keys);
// A field that has to be a positive number, finite in f32.
double ReadPositive(const JsonObject& config, FieldNames keys,
                    std::optional<double> default_value = std::nullopt);
// A multiplier: finite in f32.
float ReadScale(const JsonObject& config, FieldNames keys,
                std::optional<double> default_value = std::nullopt);
// The 1/x of a divisor such as logits_scaling, which must not be zero.
float ReadInverseScale(const JsonObject& config, FieldNames keys, double default_value);
// The epsilon of a norm: finite, not negative.
float ReadEps(const JsonObject& config, FieldNames keys, double default_value);
// Any activation that has a name in Hugging Face configs and is implemented.
Activation ReadAnyActivation(const JsonObject& config, FieldNames keys,
                             std::string_view default_name);
// hidden_act: "silu" or its other name "swish"; another is an error that names it.
Activation ReadActivation(const JsonObject& config, FieldNames keys);
// time_step_limit as {min, max}: absent or null means [0, infinity].
std::pair<float, float> ReadTimeStepLimit(const JsonObject& config, FieldNames keys);

enum class LayerKind { kMamba, kAttention };
// One kind per layer, from either vocabulary ("mamba" / "attention", "linear_attention" /
// "full_attention"). Without the field, every layer is `default_kind`.
std::vector<LayerKind> ReadLayerTypes(const JsonObject& config, FieldNames keys, int64_t layers,
                                      LayerKind default_kind);

// The heads of an attention layer: num_attention_heads, num_key_value_heads (default: as many),
// head_dim or attention_head_dim (default: hidden / heads, or `default_head_dim`). Scale, rope and
// weights are left to the family.
Attention ReadAttentionSizes(const JsonObject& config, int64_t hidden,
                             std::optional<int64_t> default_head_dim = std::nullopt);

// Which layers layer_types calls "sliding_attention"; the others are "full_attention". Without the
// field: none.
std::vector<bool> ReadSlidingLayers(const JsonObject& config, int64_t layers);

// The window of each layer's attention, 0 without one, where layer_types alone decides on it:
// sliding_window in its "sliding_attention" layers. Throws Error when use_sliding_window says
// otherwise, or where without layer_types a sliding_window is smaller than `max_positions`:
// implementations differ in whether they heed it.
std::vector<int64_t> ReadWindows(const JsonObject& config, int64_t layers, int64_t max_positions);

// sliding_window, by default 4096, where use_sliding_window is true; else, and for a stated null,
// 0.
int64_t ReadSwitchedWindow(const JsonObject& config);

// The sizes of Mamba-2 layers as hybrid models name them: mamba_n_heads, mamba_d_head (a number, or
// "auto" for inner / heads, inner being mamba_d_ssm or mamba_expand x hidden), mamba_d_state,
// mamba_n_groups, mamba_d_conv, mamba_chunk_size and time_step_limit. Weights are left to the
// family.
Mamba2 ReadMamba2Sizes(const JsonObject& config, int64_t hidden);

// Which layers have experts: every decoder_sparse_step-th but those in mlp_only_layers.
std::vector<bool> ReadExpertLayers(const JsonObject& config, int64_t layers);

// Throws Error, naming the field and its value, unless it is `expected`. A missing field passes.
void RequireBool(const JsonObject& config, std::string_view key, bool expected);
void RequireInt(const JsonObject& config, std::string_view key, int64_t expected);
void RequireString(const JsonObject& config, std::string_view key, std::string_view expected);
// `value` must be a multiple of `divisor`; the field names are for the message.
void RequireMultiple(const JsonObject& config, std::string_view value_name, int64_t value,
                     std::string_view divisor_name, int64_t divisor);

// Whether the head shares the embedding: as `keys` say, or without that field, when the checkpoint
// has no `head_tensor` of its own.
bool ReadTied(const JsonObject& config, FieldNames keys, const TensorNames& names,
              const std::string& head_tensor);

// --- Adding modules to a plan. `prefix` is the checkpoint name of the module. ---

// The `prefix` as people read it: without "model." or "backbone." in front.
std::string LabelOf(const std::string& prefix);

RmsNorm AddNorm(Plan& plan, const std::string& prefix, int64_t size, float eps);

// Makes the norms of all blocks, of q and k, and the final one such that are stored as w with
// (1 + w) applied.
void AddOneToNorms(Plan& plan);

// One module PREFIX.weight [rows, cols] with PREFIX.bias when `bias`.
Linear AddLinear(Plan& plan, const std::string& prefix, int64_t rows, int64_t cols, bool bias);

// Several modules PREFIX.NAME stacked below each other, with their biases concatenated.
struct StackedModule {
  std::string name;
  int64_t rows = 0;
};
Linear AddStacked(Plan& plan, const std::string& prefix, const std::string& label,
                  const std::vector<StackedModule>& modules, int64_t cols, bool bias);

// Embedding EMBEDDING.weight, final norm NORM.weight and the head HEAD.weight, or when `tied` the
// embedding again, with any tensors of HEAD ignored.
void AddEmbeddingAndHead(Plan& plan, const std::string& embedding, const std::string& norm,
                         const std::string& head, bool tied, float eps);

// q_proj, k_proj, v_proj and o_proj below `prefix`. Sizes, scale and rope come from `sizes`.
Attention AddAttention(Plan& plan, const std::string& prefix, const Attention& sizes, bool bias);

// Norms of each head's q and k: PREFIX.Q_NAME.weight and PREFIX.K_NAME.weight, [head_dim].
void AddHeadNorms(Plan& plan, const std::string& prefix, const std::string& q_name,
                  const std::string& k_name, float eps, Attention& attention);

// Attention of the Hunyuan models: heads normed after a rotation whose base alpha stretches.
struct HunyuanAttention {
  Attention sizes;
  bool bias = false;
  bool head_norms = true;
};
HunyuanAttention ReadHunyuanAttention(const JsonObject& config, int64_t hidden);
Attention AddHunyuanAttention(Plan& plan, const std::string& prefix,
                              const HunyuanAttention& hunyuan, float eps);

// gate_proj, up_proj and down_proj below `prefix`.
DenseMlp AddGateUpMlp(Plan& plan, const std::string& prefix, int64_t intermediate,
                      Activation activation, bool bias);
// up_proj and down_proj below `prefix`: an MLP without a gate.
DenseMlp AddUpMlp(Plan& plan, const std::string& prefix, int64_t intermediate,
                  Activation activation, bool bias);
// input_linear (gate | up rows) and output_linear below `prefix`, without biases.
DenseMlp AddFusedMlp(Plan& plan, const std::string& prefix, int64_t intermediate,
                     Activation activation);

// Where the experts of a MoeMlp are. `inputs` are the modules whose rows make up gate_up, in equal
// parts; `stacked` ones are PREFIX.NAME [experts, rows, cols], whose tensor's name may be bare
// (MatrixPart), others PREFIX.EXPERT.NAME.
struct ExpertModules {
  std::string prefix;
  bool stacked = false;
  bool bare = false;
  std::vector<std::string> inputs;
  std::string down;
};
// The experts of `moe`, whose sizes are set. `label` is for people.
void AddExperts(Plan& plan, const std::string& label, const ExpertModules& modules, MoeMlp& moe);
// Experts with a gate as most files have them: PREFIX.experts.EXPERT.{gate,up,down}_proj in Hugging
// Face files, PREFIX.switch_mlp.{gate,up,down}_proj in MLX files.
void AddGateUpExperts(Plan& plan, const std::string& prefix, const TensorNames& names, MoeMlp& moe);

// in_proj, conv1d, dt_bias, A_log, D, norm and out_proj below `prefix`. Sizes, dt limits and chunk
// come from `sizes`.
struct Mamba2Options {
  bool proj_bias = false;
  std::optional<bool> out_proj_bias;  // default: as proj_bias
  bool conv_bias = true;
  bool gated_norm = true;
  int64_t norm_groups = 1;
  float eps = 1e-5f;
};
Mamba2 AddMamba2(Plan& plan, const std::string& prefix, const Mamba2& sizes,
                 const Mamba2Options& options);

// A block whose mixers all read the residual through the norm NORM_PREFIX.weight.
Block MakeBlock(Plan& plan, int64_t layer, const std::string& norm_prefix, float eps,
                std::vector<Mixer> mixers, float residual_scale);

}  // namespace adder
