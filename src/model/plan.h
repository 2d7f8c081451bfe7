// The vocabulary of the project: what a model does, as plain data.
//
// A family (families/<model_type>.cc) reads config.json and tensor names and returns a Plan.
// Nothing downstream asks which family a plan came from: every peculiarity is a named field here. A
// Plan is device-free, immutable after ValidatePlan, and printable (`adder inspect --plan`).
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/shape.h"

namespace adder {

// Indices into Plan::matrices and Plan::vectors; the bound weights use the same indices.
using MatrixId = int32_t;
using VectorId = int32_t;
inline constexpr int32_t kNoId = -1;

// Bounds on what a plan may ask for. Real models stay far below; a config beyond them is damaged or
// hostile, and is refused before anything is allocated.
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxExpertsInAll = int64_t{1} << 17;  // over all layers
inline constexpr int64_t kMaxRows = int64_t{1} << 31;          // of a matrix; also its columns
inline constexpr int64_t kMaxSize = int64_t{1} << 24;          // heads, d_state, hidden, ...
inline constexpr int64_t kMaxHeadDim = 4096;                   // of attention
inline constexpr int64_t kMaxStateSize = int64_t{1} << 28;     // floats of one recurrent state

// Where the rows of a matrix come from. `module` is the checkpoint name without ".weight": a
// quantised module also has ".scales" and ".biases". The tensor is [rows, cols], or
// [experts, rows, cols] when `experts` > 0, of which expert `expert` is meant. Of its rows,
// [row_begin, row_begin + row_count) are used; the other rows must be claimed by other parts.
struct MatrixPart {
  std::string module;
  int64_t rows = 0;
  int64_t row_begin = 0;
  int64_t row_count = 0;
  int64_t experts = 0;
  int64_t expert = 0;
  // The tensor's name is `module` itself, without ".weight" (stacked expert parameters).
  bool bare_name = false;
};

// A weight matrix [rows, cols] (y = W x; rows are outputs): the parts' rows stacked in order.
struct MatrixRef {
  std::string label;  // for people: "layers.3 in_proj"
  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<MatrixPart> parts;
  // No layout has a quantised form of it.
  bool always_float = false;
};

// What is done to a vector's values when they are loaded as f32.
enum class VectorTransform {
  kIdentity,
  kNegativeExp,            // a = -exp(A_log)
  kNegativeExpTransposed,  // the same, of A_log [channels, d_state] -> [d_state, channels]
  kPlusOne,                // norms stored as w with (1 + w) applied
  kConvTimeMajor,  // conv weight [channels, 1, taps] or [channels, taps, 1] -> [taps, channels]
};

// A small float tensor (norm weight, bias, conv weight, ...), loaded as f32. Several parts are
// concatenated (the biases of q, k and v).
struct VectorPart {
  std::string tensor;         // full checkpoint name
  std::vector<Shape> shapes;  // accepted shapes; all have the same number of elements
};
struct VectorRef {
  std::string label;
  std::vector<VectorPart> parts;
  VectorTransform transform = VectorTransform::kIdentity;
  float offset = 0;  // added to every value after the transform
};

// A constant that multiplies `rows` consecutive rows.
struct RowScale {
  int64_t rows = 0;
  float factor = 1;
};

// y = row_scale * (input_scale * W x + b). row_scales follow each other from the first row on;
// without any, y is not scaled.
struct Linear {
  MatrixId weight = kNoId;
  VectorId bias = kNoId;
  float input_scale = 1;
  std::vector<RowScale> row_scales = {};

  bool scaled() const { return input_scale != 1 || !row_scales.empty(); }
};

// y = x / sqrt(mean(x^2) + eps) * w, the mean taken over each of `groups` equal parts of x.
struct RmsNorm {
  VectorId weight = kNoId;  // where a mixer says so, kNoId: w = 1
  float eps = 1e-5f;
  int64_t groups = 1;

  bool operator==(const RmsNorm&) const = default;
};

enum class Activation {
  kSilu,      // x sigmoid(x)
  kGelu,      // x Phi(x), Phi being the normal distribution's cumulative function
  kGeluTanh,  // its approximation x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
  kRelu2,     // max(x, 0)^2
};

// Rotary position embedding of the first `rotary_dim` elements of each head, in the half-split
// form: element i pairs with i + rotary_dim / 2. inverse_frequencies has rotary_dim / 2 entries
// with any scaling (linear, llama3, ...) already applied.
struct Rope {
  int64_t rotary_dim = 0;
  double theta = 10000.0;
  std::string scaling = "default";  // for people
  std::vector<float> inverse_frequencies;
};

// Causal grouped-query attention. qkv rows: q [heads * head_dim] | k [kv_heads * head_dim] |
// v [kv_heads * head_dim]. State: keys and values of every position (truncatable).
struct Attention {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0;  // multiplies q . k
  std::optional<Rope> rope;
  // Norms of q and of k. A weight of head_dim elements norms every head alone, one of all heads'
  // elements norms them together (in `groups` parts).
  std::optional<RmsNorm> q_norm;
  std::optional<RmsNorm> k_norm;
  bool qk_norm_after_rope = false;  // else the norms come before the rotation
  Linear qkv;
  Linear output;
};

// Mamba-2 (Dao & Gu, "Transformers are SSMs", arXiv:2405.21060). in_proj rows: z [inner] | x
// [inner] | B [groups * d_state] | C [groups * d_state] | dt [heads], inner = heads * head_dim. The
// causal depthwise convolution runs over x | B | C and is followed by SiLU. Per head:
//   dt = clamp(softplus(dt + dt_bias), dt_min, dt_max)
//   h  = exp(dt * a) * h + dt * B x^T          (h: [d_state, head_dim])
//   y  = C^T h + d * x
// then y * silu(z), the gated norm over all inner channels, and out_proj; norm_before_gate: the
// norm of y, then times silu(z). Heads share B and C of their group: group = head / (heads /
// groups).
//
// With a `selection`, in_proj rows are z [inner] | x [inner], the convolution runs over x alone,
// and from its result x, after SiLU, selection.proj makes rows B [groups * d_state] | C [groups *
// d_state] | dt [dt_rank], each of which may be normed; the dt of the formulas is dt_proj dt; the
// norm then never comes before the gate.
//
// State: the last d_conv - 1 inputs of the convolution and h (restorable only).
struct Mamba2Selection {
  int64_t dt_rank = 0;
  Linear proj;
  std::optional<RmsNorm> b_norm;
  std::optional<RmsNorm> c_norm;
  std::optional<RmsNorm> dt_norm;
  Linear dt_proj;  // [heads, dt_rank]
};

struct Mamba2 {
  int64_t heads = 0;
  int64_t head_dim = 0;
  int64_t d_state = 0;
  int64_t groups = 1;
  int64_t d_conv = 0;
  float dt_min = 0;
  float dt_max = std::numeric_limits<float>::infinity();
  int64_t chunk = 256;  // prefill chunk of the reference; a hint
  Linear in_proj;
  VectorId conv_weight = kNoId;  // [d_conv, conv_channels()], time-major
  VectorId conv_bias = kNoId;    // optional
  VectorId dt_bias = kNoId;      // [heads]
  VectorId a = kNoId;            // [heads], negative
  VectorId d = kNoId;            // [heads]
  std::optional<Mamba2Selection> selection;
  std::optional<RmsNorm> gated_norm;
  bool norm_before_gate = false;
  Linear out_proj;

  int64_t inner() const { return heads * head_dim; }
  // Of x | B | C.
  int64_t scan_channels() const { return inner() + 2 * groups * d_state; }
  int64_t conv_channels() const { return selection ? inner() : scan_channels(); }
  int64_t in_proj_rows() const { return inner() + conv_channels() + (selection ? 0 : heads); }
  // With a selection.
  int64_t selection_rows() const { return 2 * groups * d_state + selection->dt_rank; }
};

// Gated short convolution. in_proj rows: B [channels] | C [channels] | x [channels]. Per token:
//   u = B * x
//   y = C * (conv_bias + sum over taps t of conv_weight[t] * u[d_conv - 1 - t tokens ago])
// then out_proj; the products are element by element, and there is no activation.
// State: the last d_conv - 1 values of u (restorable only).
struct ShortConv {
  int64_t channels = 0;
  int64_t d_conv = 0;
  Linear in_proj;
  VectorId conv_weight = kNoId;  // [d_conv, channels], time-major
  VectorId conv_bias = kNoId;    // optional
  Linear out_proj;
};

// Mamba-1 (Gu & Dao, "Mamba", arXiv:2312.00752). in_proj rows: x [inner] | z [inner]. The causal
// depthwise convolution runs over x and is followed by SiLU; of its result x, x_proj makes rows
// dt [dt_rank] | B [d_state] | C [d_state], each of which may be normed. Per channel:
//   dt = softplus(dt_proj(dt))
//   h  = exp(dt * a) * h + dt * B x            (h: [d_state], of the channel)
//   y  = C . h + d * x
// then y * silu(z) and out_proj.
// State: the last d_conv - 1 inputs of the convolution and h (restorable only).
struct Mamba1 {
  int64_t inner = 0;
  int64_t d_state = 0;
  int64_t d_conv = 0;
  int64_t dt_rank = 0;
  Linear in_proj;
  VectorId conv_weight = kNoId;  // [d_conv, inner], time-major
  VectorId conv_bias = kNoId;    // optional
  Linear x_proj;
  std::optional<RmsNorm> dt_norm;  // of these three the weight may be none
  std::optional<RmsNorm> b_norm;
  std::optional<RmsNorm> c_norm;
  Linear dt_proj;      // [inner, dt_rank]
  VectorId a = kNoId;  // [d_state, inner], negative
  VectorId d = kNoId;  // [inner]
  Linear out_proj;

  int64_t in_proj_rows() const { return 2 * inner; }
  int64_t x_proj_rows() const { return dt_rank + 2 * d_state; }
};

// down(act(gate x) * up x). gate_up rows: gate [intermediate] | up [intermediate]. Not `gated`:
// down(act(up x)), gate_up rows being up [intermediate] alone.
struct DenseMlp {
  int64_t intermediate = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;
  Linear gate_up;
  Linear down;
  // [1, hidden], optional: the output is multiplied by sigmoid(output_gate x). `down` then has no
  // bias.
  Linear output_gate;
};

enum class RouterScores { kSoftmax, kSigmoid };

// How a router chooses experts and weighs them. Scores: softmax over all experts' logits, or the
// sigmoid of each. Chosen: the top_k largest of score + choice_bias (ties: lower index). When
// top_groups < groups, the experts lie in `groups` equal groups, a group counts by the sum of its
// two largest score + choice_bias (ties: lower index), and outside of the top_groups best groups
// score + choice_bias is replaced by 0. Weights: scale * score, without the bias, with `normalize`
// divided by normalize_eps + the sum of the chosen scores.
struct Routing {
  RouterScores scores = RouterScores::kSoftmax;
  VectorId choice_bias = kNoId;  // [experts], optional
  int64_t groups = 1;
  int64_t top_groups = 1;
  bool normalize = true;
  float normalize_eps = 0;
  float scale = 1;

  // Whether it is the common rule: the largest logits, weighed by softmax over the chosen.
  bool plain() const {
    return scores == RouterScores::kSoftmax && choice_bias == kNoId && groups == top_groups &&
           normalize && normalize_eps == 0 && scale == 1;
  }
};

// Sparse mixture of expert MLPs; `gated` as in DenseMlp. Experts that every token uses are a
// DenseMlp beside it.
struct MoeMlp {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t intermediate = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;
  Linear router;  // [experts, hidden]
  Routing routing;
  std::vector<MatrixId> gate_up;  // per expert, rows gate | up, or up alone
  std::vector<MatrixId> down;     // per expert
};

using Mixer = std::variant<Attention, Mamba2, Mamba1, ShortConv, DenseMlp, MoeMlp>;

// x += residual_scale * sum of mixers(pre_norm(x)). With a post_norm, which blocks of one mixer
// other than MoeMlp may have: x += residual_scale * post_norm(mixer(pre_norm(x))).
struct Block {
  int64_t layer = 0;  // layer number of the checkpoint; a layer may be several blocks
  RmsNorm pre_norm;
  std::vector<Mixer> mixers;
  float residual_scale = 1;
  std::optional<RmsNorm> post_norm = std::nullopt;
};

struct Plan {
  std::string family;  // model_type; for people, never branched on
  int64_t vocab = 0;
  int64_t hidden = 0;
  int64_t max_positions = 0;  // 0: no stated limit

  std::vector<MatrixRef> matrices;
  std::vector<VectorRef> vectors;

  MatrixId embedding = kNoId;  // [vocab, hidden]
  float embedding_scale = 1;   // multiplies the embedding
  std::vector<Block> blocks;
  RmsNorm final_norm;
  Linear head;             // [vocab, hidden]; the same MatrixId as the embedding when tied
  float logits_scale = 1;  // multiplies the logits

  // Checkpoint tensors that are deliberately not used: exact names, or prefixes ending in '*'.
  std::vector<std::string> ignored_tensors;

  MatrixId AddMatrix(MatrixRef matrix);
  // A matrix that is one whole module, rows x cols.
  MatrixId AddMatrix(std::string label, std::string module, int64_t rows, int64_t cols);
  VectorId AddVector(VectorRef vector);
  // A vector that is one whole tensor of shape [size].
  VectorId AddVector(std::string label, std::string tensor, int64_t size,
                     VectorTransform transform = VectorTransform::kIdentity);
};

// Elements of a vector after loading; -1 when its shapes are absent, disagree or overflow.
int64_t VectorSize(const VectorRef& vector);

// Throws Error naming block and field when sizes disagree, are absurd, or an id is out of range.
void ValidatePlan(const Plan& plan);

// Parameters of the plan (every matrix once, tied weights once).
int64_t ParameterCount(const Plan& plan);

// "Attention", "Mamba2", "Mamba1", "ShortConv", "DenseMlp", "MoeMlp".
std::string MixerName(const Mixer& mixer);

// "silu", "gelu", "gelu_tanh", "relu2".
std::string ActivationName(Activation activation);

// A text for people: one line per block with every field.
std::string PlanString(const Plan& plan);

}  // namespace adder
