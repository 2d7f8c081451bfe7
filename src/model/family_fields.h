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
// A multiplier: finite in f32.
float ReadScale(const JsonObject& config, FieldNames keys,
                std::optional<double> default_value = std::nullopt);
// The 1/x of a divisor such as logits_scaling, which must not be zero.
float ReadInverseScale(const JsonObject& config, FieldNames keys, double default_value);
// The epsilon of a norm: finite, not negative.
float ReadEps(const JsonObject& config, FieldNames keys, double default_value);
// hidden_act: "silu" or its other name "swish"; other activations are not implemented.
Activation ReadActivation(const JsonObject& config, FieldNames keys);
// time_step_limit as {min, max}: absent or null means [0, infinity].
std::pair<float, float> ReadTimeStepLimit(const JsonObject& config, FieldNames keys);

enum class LayerKind { kMamba, kAttention };
// One kind per layer, from either vocabulary ("mamba" / "attention", "linear_attention" /
// "full_attention"). Without the field, every layer is `default_kind`.
std::vector<LayerKind> ReadLayerTypes(const JsonObject& config, FieldNames keys, int64_t layers,
                                      LayerKind default_kind);

// The rotary embedding of heads of `head_dim` elements: rope_theta with rope_scaling, or the newer
// rope_parameters; partial_rotary_factor. Scalings: default, linear, llama3 (with the formula of
// Llama 3.1); others are an Error.
Rope ReadRope(const JsonObject& config, int64_t head_dim, double default_partial_factor = 1.0,
              double default_theta = 10000.0);

// The heads of an attention layer: num_attention_heads, num_key_value_heads (default: as many),
// head_dim (default: hidden / heads). Scale, rope and weights are left to the family.
Attention ReadAttentionSizes(const JsonObject& config, int64_t hidden);

// The sizes of Mamba-2 layers as hybrid models name them: mamba_n_heads, mamba_d_head (a number, or
// "auto" for mamba_expand x hidden / heads), mamba_d_state, mamba_n_groups, mamba_d_conv,
// mamba_chunk_size and time_step_limit. Weights are left to the family.
Mamba2 ReadMamba2Sizes(const JsonObject& config, int64_t hidden);

// The value of a field that must be `expected` because other values are not implemented. A missing
// field passes.
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

// gate_proj, up_proj and down_proj below `prefix`.
DenseMlp AddGateUpMlp(Plan& plan, const std::string& prefix, int64_t intermediate,
                      Activation activation, bool bias);
// input_linear (gate | up rows) and output_linear below `prefix`, without biases.
DenseMlp AddFusedMlp(Plan& plan, const std::string& prefix, int64_t intermediate,
                     Activation activation);

// in_proj, conv1d, dt_bias, A_log, D, norm and out_proj below `prefix`. Sizes, dt limits and chunk
// come from `sizes`.
struct Mamba2Options {
  bool proj_bias = false;
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
