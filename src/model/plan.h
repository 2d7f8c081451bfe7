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
#include "model/rope.h"

namespace adder {

// Indices into Plan::matrices and Plan::vectors; the bound weights use the same indices.
using MatrixId = int32_t;
using VectorId = int32_t;
inline constexpr int32_t kNoId = -1;

// Bounds on what a plan may ask for. Real models stay far below; a config beyond them is damaged or
// hostile, and is refused before anything is allocated.
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxExpertsInAll = int64_t{1} << 17;  // over all layers
inline constexpr int64_t kMaxHeadsInAll = int64_t{1} << 17;    // that have weights of their own
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
  // The rows meant are the matrix's columns: the tensor is [rows, rows of the matrix]. Such a part
  // is its matrix's only one, without experts.
  bool transposed = false;
};

// A weight matrix [rows, cols] (y = W x; rows are outputs): the parts' rows stacked in order, or
// one transposed part.
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
  // conv weight [channels, 1, taps] or [channels, taps, 1] -> [taps, channels]; the channels of
  // several parts lie side by side
  kConvTimeMajor,
  kGroupedConvTimeMajor,  // conv weight [channels, inputs, taps] -> [taps, inputs, channels]
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
  float offset = 0;    // added to every value after the transform
  int64_t repeat = 1;  // every value is there so many times, one after the other
  std::optional<float> last = std::nullopt;  // replaces the last value
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

// A low-rank addition to a linear map of `cols` inputs: y += B (A x). `b` are equal parts of B, the
// j-th of which reads the j-th of as many parts of A x.
struct Adapter {
  int64_t rank = 0;         // of each part
  Linear a;                 // [parts * rank, cols]
  std::vector<MatrixId> b;  // per part: [rows / parts, rank]
};

// y = x / sqrt(mean(x^2) + eps) * w, the mean taken over each of `groups` equal parts of x.
// Centered (a layer norm): the part's mean is taken off x first, and `bias` added to y.
struct RmsNorm {
  VectorId weight = kNoId;  // where a mixer says so, kNoId: w = 1
  float eps = 1e-5f;
  int64_t groups = 1;
  bool centered = false;
  VectorId bias = kNoId;  // with `centered`

  bool operator==(const RmsNorm&) const = default;
};

enum class Activation {
  kSilu,      // x sigmoid(x)
  kGelu,      // x Phi(x), Phi being the normal distribution's cumulative function
  kGeluTanh,  // its approximation x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
  kRelu2,     // max(x, 0)^2
  kSigmoid,   // 1 / (1 + exp(-x))
  kTanh,
};

// What is done to q, k and v before their norms (Figliolia et al., "Compressed Convolutional
// Attention", arXiv:2510.04476). Of a token's rows q | k | v1 | v2, of which v1 and v2 are half as
// wide as v:
//   u  = a causal depthwise convolution of q | k with `taps` taps, then a causal convolution with
//        `group_taps` taps in which the channels of each head mix
//   mq = (q + k of its KV head) / 2 of each query head
//   mk = the mean of mq over the query heads of each KV head
//   q | k becomes u + (mq | mk), and v becomes v1 | v2 of the token before (before the first: 0)
// State: the last taps + group_taps - 2 rows of q | k, and v2 (restorable only).
struct HeadMixing {
  int64_t taps = 0;
  int64_t group_taps = 0;
  VectorId conv_weight = kNoId;   // [taps, channels], time-major
  VectorId conv_bias = kNoId;     // [channels]
  VectorId group_weight = kNoId;  // [group_taps, head_dim, channels], time-major
  VectorId group_bias = kNoId;    // [channels]

  int64_t past() const { return taps + group_taps - 2; }
};

// Causal grouped-query attention. qkv rows: q [heads * head_dim] | k [kv_heads * head_dim] |
// v [kv_heads * head_dim]; with values_from_keys there are no v rows, and v is k before its norm
// and rotation; with a shared_kv_block there are q rows alone, and k and v are those of that
// earlier block's attention. With an output_gate, rows gate [heads * head_dim] follow: what is
// attended is multiplied by sigmoid(gate) before `output`. State: keys and values of every position
// (truncatable), unless shared.
struct Attention {
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  float scale = 0;  // multiplies q . k
  std::optional<Rope> rope;
  // Norms of q, of k and of v. A weight of head_dim elements, or none, norms every head alone, one
  // of all heads' elements norms them together (in `groups` parts).
  std::optional<RmsNorm> q_norm;
  std::optional<RmsNorm> k_norm;
  std::optional<RmsNorm> v_norm;
  bool qk_norm_after_rope = false;  // else the norms come before the rotation
  int64_t window = 0;  // > 0: a token attends to so many positions at most, itself included
  bool values_from_keys = false;
  int64_t shared_kv_block = -1;      // index into Plan::blocks; its attention has the same sizes
  std::optional<HeadMixing> mixing;  // of q, k and v that all are its own
  bool output_gate = false;
  Linear qkv;
  std::optional<Adapter> qkv_adapter;
  Linear output;

  bool owns_kv() const { return shared_kv_block < 0; }
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
  int64_t qkv_rows() const {
    return q_width() + (owns_kv() ? (values_from_keys ? 1 : 2) * kv_width() : 0) +
           (output_gate ? q_width() : 0);
  }
};

// Multi-head latent attention (DeepSeek-AI, "DeepSeek-V2", arXiv:2405.04434). The keys and values
// of all heads come from one small latent per position:
//   q  = q_b q_norm(q_a x), or q_b x when q_rank is 0; rows per head: qn [nope_dim] | qr [rope_dim]
//   kv_a x has rows c [latent] | kr [rope_dim]; c is normed, qr and kr may be rotated
//   key of a head: K c | kr, its value: V c      (K: [nope_dim, latent], V: [value_dim, latent])
// and softmax(scale * q . key) over the positions weighs the values, which `output` reads. Since
// qn . K c = (K^T qn) . c, the heads attend to c | kr itself: `absorb` has K^T [latent, nope_dim]
// of each head, `expand` V, which the weighed sum of the c goes through.
// State: c | kr of every position (truncatable).
struct LatentAttention {
  int64_t heads = 0;
  int64_t latent = 0;
  int64_t nope_dim = 0;
  int64_t rope_dim = 0;
  int64_t value_dim = 0;
  int64_t q_rank = 0;
  float scale = 0;
  std::optional<Rope> rope;  // of rope_dim elements
  Linear q_a;                // [q_rank, hidden]; none when q_rank is 0
  std::optional<RmsNorm> q_norm;
  Linear q_b;   // [heads * query_dim(), q_rank or hidden]
  Linear kv_a;  // [key_dim(), hidden]
  RmsNorm kv_norm;
  std::vector<MatrixId> absorb;  // per head
  std::vector<MatrixId> expand;  // per head
  Linear output;                 // [hidden, heads * value_dim]

  int64_t query_dim() const { return nope_dim + rope_dim; }
  int64_t key_dim() const { return latent + rope_dim; }
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

// Lightning attention (Qin et al., "Various Lengths, Constant Speed", arXiv:2405.17381): linear
// attention with a constant decay per head. qkv rows of each head: q | k | v [head_dim each], all
// through `activation`. Per head:
//   h = exp(-slope) * h + k v^T            (h: [head_dim, head_dim])
//   y = h^T q
// then the norm over the y of all heads, times sigmoid(gate x), and output.
// State: h (restorable only).
struct LightningAttention {
  int64_t heads = 0;
  int64_t head_dim = 0;
  Activation activation = Activation::kSilu;
  std::vector<float> slopes;  // per head
  Linear qkv;
  RmsNorm norm;
  Linear gate;  // [heads * head_dim, hidden]
  Linear output;

  int64_t width() const { return heads * head_dim; }
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

// up(down x), or with an activation up(act(down x)).
struct LowRank {
  Linear down;
  Linear up;
  std::optional<Activation> activation = std::nullopt;
};

// Gated delta rule (Yang et al., "Gated Delta Networks", arXiv:2412.06464); with a decay per
// channel of the key it is Kimi Delta Attention (arXiv:2510.26692). in_proj rows: q [key_heads *
// key_dim] | k [key_heads * key_dim] | v [value_heads * value_dim] | b [value_heads], then a
// [decay_rows()] if there is no decay_proj, then z [value_heads * value_dim] if there is no
// gate_proj. The causal depthwise convolution runs over q | k | v and is followed by SiLU. Per
// value head, whose key head is head / (value_heads / key_heads):
//   q    = query_scale * q / sqrt(sum of q^2 + qk_eps), k likewise without query_scale
//   g    = exp(a_head * softplus(a + dt_bias))       (one per head, or per channel of the key)
//   beta = beta_scale * sigmoid(b)
//   S    = g S;  S = S + k (beta (v - S^T k))^T      (S: [key_dim, value_dim])
//   y    = S^T q
// then the norm of each head's y, times gate_activation(z), and out_proj; decay_proj x and
// gate_proj x stand for a and z where they are given. State: the last d_conv - 1 inputs of the
// convolution and S (restorable only).
struct GatedDelta {
  int64_t key_heads = 0;
  int64_t value_heads = 0;
  int64_t key_dim = 0;    // of a head
  int64_t value_dim = 0;  // of a head
  int64_t d_conv = 0;
  bool decay_per_channel = false;
  float qk_eps = 1e-6f;
  float query_scale = 1;
  float beta_scale = 1;
  Activation gate_activation = Activation::kSilu;
  Linear in_proj;
  VectorId conv_weight = kNoId;  // [d_conv, conv_channels()], time-major
  VectorId conv_bias = kNoId;    // optional
  std::optional<LowRank> decay_proj;
  std::optional<LowRank> gate_proj;
  VectorId dt_bias = kNoId;  // [decay_rows()]
  VectorId a = kNoId;        // [value_heads], negative
  RmsNorm norm;              // [value_dim]
  Linear out_proj;

  int64_t keys() const { return key_heads * key_dim; }
  int64_t values() const { return value_heads * value_dim; }
  int64_t conv_channels() const { return 2 * keys() + values(); }
  int64_t decay_rows() const { return value_heads * (decay_per_channel ? key_dim : 1); }
  int64_t in_proj_rows() const {
    return conv_channels() + value_heads + (decay_proj ? 0 : decay_rows()) +
           (gate_proj ? 0 : values());
  }
};

// The real-gated linear recurrent unit (De et al., "Griffin", arXiv:2402.19427). in_proj rows: x
// [width] | y [width]. The causal depthwise convolution runs over x, without an activation. Per
// channel, of a head of width / heads channels:
//   i = sigmoid(input_weight x + input_bias), r = sigmoid(recurrent_weight x + recurrent_bias)
//   a = exp(-decay_scale * r * softplus(decay))
//   h = a h + sqrt(1 - a^2) * i * x, for the sequence's first token h = i * x
// where the weights multiply the head's channels of x. Then h * gate_activation(y) and out_proj.
// State: the last d_conv - 1 inputs of the convolution and h (restorable only).
struct RgLru {
  int64_t width = 0;
  int64_t heads = 0;
  int64_t d_conv = 0;
  float decay_scale = 8;
  Activation gate_activation = Activation::kGeluTanh;
  Linear in_proj;
  VectorId conv_weight = kNoId;       // [d_conv, width], time-major
  VectorId conv_bias = kNoId;         // optional
  VectorId input_weight = kNoId;      // [heads, block(), block()], inputs first
  VectorId input_bias = kNoId;        // [width]
  VectorId recurrent_weight = kNoId;  // as input_weight
  VectorId recurrent_bias = kNoId;    // [width]
  VectorId decay = kNoId;             // [width]
  Linear out_proj;

  int64_t block() const { return width / heads; }
};

// RWKV-7 (Peng et al., arXiv:2503.14456). Each projection reads its own mixture of this token's
// input and the previous one's: x + shift_mix_p * (previous x - x), p being r, k, v, decay, rate,
// gate in this order (of a sequence's first token the previous x is 0). With value_mix, which reads
// what v reads:
//   v = v + sigmoid(value_mix) * (v of the plan's first such mixer - v)
// Then per head, S being [head_dim, head_dim] with one row per channel of the key:
//   kappa = key_scale * k, of length 1; alpha = sigmoid(rate)
//   k = k * (1 + (alpha - 1) * key_rate)
//   S = exp(-exp(-1/2) * sigmoid(decay)) S + (alpha * kappa) (-S^T kappa)^T + k v^T
//   y = norm(S^T r) + (r . (bonus * k)) v
// times gate, and output. State: the previous x and S (restorable only).
inline constexpr float kRwkv7DecayScale = 0.60653066f;  // exp(-1/2)
inline constexpr float kRwkv7ShortestKey = 1e-7f;       // shorter ones are divided by it
struct Rwkv7 {
  int64_t heads = 0;
  int64_t head_dim = 0;
  VectorId shift_mix = kNoId;  // [6, hidden]
  Linear r;
  Linear k;
  Linear v;
  LowRank decay;
  LowRank rate;
  LowRank gate;
  std::optional<LowRank> value_mix;
  VectorId key_scale = kNoId;  // [inner()], as the next two
  VectorId key_rate = kNoId;
  VectorId bonus = kNoId;
  RmsNorm norm;  // [inner()], centered, one group per head
  Linear output;

  int64_t inner() const { return heads * head_dim; }
};

// down(act(gate x) * up x). gate_up rows: gate [intermediate] | up [intermediate]. Not `gated`:
// down(act(up x)), gate_up rows being up [intermediate] alone.
struct DenseMlp {
  int64_t intermediate = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;
  Linear gate_up;
  std::optional<Adapter> gate_up_adapter;
  Linear down;
  // [1, hidden], optional: the output is multiplied by sigmoid(output_gate x). `down` then has no
  // bias.
  Linear output_gate;
  // >= 0, of an MLP without a gate: what `down` reads is multiplied by this part of the token's
  // layer inputs (Plan::layer_inputs).
  int64_t layer_input = -1;
  // [hidden], optional: gate_up reads x + shift_mix * (previous token's x - x), of a sequence's
  // first token the previous x being 0. State: the previous x (restorable only).
  VectorId shift_mix = kNoId;
};

enum class RouterScores { kSoftmax, kSigmoid };

// How a router chooses experts and weighs them. Scores: softmax over all experts' logits, or the
// sigmoid of each. Chosen: the top_k largest of score + choice_bias (ties: lower index). When
// top_groups < groups, the experts lie in `groups` equal groups, a group counts by the sum of its
// two largest score + choice_bias (ties: lower index), and only experts of the top_groups best
// groups are chosen. Weights: scale * score, without the bias, with `normalize`
// divided by normalize_eps + the sum of the chosen scores; then times the expert's expert_scale.
// The `idle` last scores belong to no expert: choosing one of them adds nothing.
struct Routing {
  RouterScores scores = RouterScores::kSoftmax;
  VectorId choice_bias = kNoId;  // [experts], optional
  int64_t groups = 1;
  int64_t top_groups = 1;
  bool normalize = true;
  float normalize_eps = 0;
  float scale = 1;
  VectorId expert_scale = kNoId;  // [experts], optional
  int64_t idle = 0;               // counted with the experts in choice_bias and expert_scale

  // Whether it is the common rule: the largest logits, weighed by softmax over the chosen.
  bool plain() const {
    return scores == RouterScores::kSoftmax && choice_bias == kNoId && groups == top_groups &&
           normalize && normalize_eps == 0 && scale == 1 && expert_scale == kNoId && idle == 0;
  }
};

// What a router reads instead of the hidden state u:
//   r = down u, plus carried_scale times the r of the router before, in the same token
//   act(fc2 act(fc1 norm(r)))
struct RouterMlp {
  int64_t width = 0;
  Activation activation = Activation::kGelu;
  Linear down;                     // [width, hidden]
  VectorId carried_scale = kNoId;  // [width], optional
  RmsNorm norm;
  Linear fc1;  // [width, width]
  Linear fc2;  // [width, width]
};

// Sparse mixture of expert MLPs; `gated` as in DenseMlp. Experts that every token uses are a
// DenseMlp beside it.
struct MoeMlp {
  int64_t experts = 0;
  int64_t top_k = 0;
  int64_t intermediate = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;
  Linear router;  // [experts + idle, hidden or the width of router_mlp]
  std::optional<RouterMlp> router_mlp;
  std::optional<RmsNorm> router_norm;  // through which the router reads, not that of the experts
  Routing routing;
  std::vector<MatrixId> gate_up;  // per expert, rows gate | up, or up alone
  std::vector<MatrixId> down;     // per expert
};

using Mixer = std::variant<Attention, LatentAttention, LightningAttention, Mamba2, Mamba1,
                           ShortConv, GatedDelta, RgLru, Rwkv7, DenseMlp, MoeMlp>;

// What a block's mixers read.
enum class BlockInput {
  kResidual,              // x
  kResidualAndEmbedding,  // x | the embedded token, twice as wide as x; for Attention alone
  kSide,                  // the side stream
  kResidualPlusSide,      // x + side_projection(side stream)
};

// Norms of one mixer of a block: `pre` instead of the block's pre_norm, `post` of its result.
struct BranchNorms {
  std::optional<RmsNorm> pre;
  std::optional<RmsNorm> post;
};

// What becomes of x besides: x = total * (keep * (x + keep_bias) * keep_scale +
//                                         residual_scale * (y + add_bias) * add_scale)
// where y is what the block adds. Vectors that are absent change nothing.
struct ResidualRule {
  bool normed = false;  // x becomes pre_norm(x) first, which the mixers read
  float keep = 1;
  VectorId keep_bias = kNoId;   // [hidden]
  VectorId keep_scale = kNoId;  // [hidden]
  VectorId add_bias = kNoId;    // [hidden]
  VectorId add_scale = kNoId;   // [hidden]
  VectorId total = kNoId;       // [1]

  bool operator==(const ResidualRule&) const = default;
};

// x += residual_scale * post_norm(sum of mixers(pre_norm(x))). There may be no post_norm, and with
// skip_pre_norm no pre_norm.
//
// Beside x there may be a side stream: a block that goes to_side has one mixer other than MoeMlp,
// none of the fields that change how x is added to, and makes mixer(pre_norm(input)) the side
// stream for the blocks after it; x stays.
struct Block {
  int64_t layer = 0;  // layer number of the checkpoint; a layer may be several blocks
  RmsNorm pre_norm;
  std::vector<Mixer> mixers;
  float residual_scale = 1;
  std::optional<RmsNorm> post_norm = std::nullopt;
  BlockInput input = BlockInput::kResidual;
  Linear side_projection = {};  // [hidden, hidden]
  bool to_side = false;
  bool skip_pre_norm = false;                  // pre_norm is unused
  std::vector<BranchNorms> branch_norms = {};  // none, or one per mixer
  ResidualRule rule = {};
};

// What a token brings to each layer by itself: rows of `parts` parts of `width` elements,
//   scale * (norm of each part(projection x) + embedding_scale * embedding[token])
// x being the embedded token.
struct LayerInputs {
  int64_t parts = 0;
  int64_t width = 0;
  MatrixId embedding = kNoId;  // [vocab, parts * width]
  float embedding_scale = 1;
  Linear projection;  // [parts * width, hidden]
  RmsNorm norm;       // [width], the same for every part
  float scale = 1;
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
  // [hidden], optional: x is (embedding + embedding_bias) * embedding_factor.
  VectorId embedding_bias = kNoId;
  VectorId embedding_factor = kNoId;
  std::optional<LayerInputs> layer_inputs;
  std::optional<RmsNorm> embedding_norm;
  std::vector<Block> blocks;
  RmsNorm final_norm;
  Linear head;             // [vocab, hidden]; the same MatrixId as the embedding when tied
  float logits_scale = 1;  // multiplies the logits
  float logits_cap = 0;    // > 0: logits become logits_cap * tanh(logits / logits_cap)

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

// Makes a plan one for texts of up to `positions` tokens: max_positions becomes that, and rotary
// embeddings are fitted to it (FitRope). Throws Error when that is more than the model has, unless
// its rotary embeddings stretch by themselves ("dynamic").
void OpenForPositions(Plan& plan, int64_t positions);

// Throws Error naming block and field when sizes disagree, are absurd, or an id is out of range.
void ValidatePlan(const Plan& plan);

// Parameters of the plan (every matrix once, tied weights once).
int64_t ParameterCount(const Plan& plan);

// "Attention", "LatentAttention", "LightningAttention", "Mamba2", "Mamba1", "ShortConv",
// "GatedDelta", "RgLru", "Rwkv7", "DenseMlp", "MoeMlp".
std::string MixerName(const Mixer& mixer);

// "silu", "gelu", "gelu_tanh", "relu2", "sigmoid", "tanh".
std::string ActivationName(Activation activation);

// A text for people: one line per block with every field.
std::string PlanString(const Plan& plan);

}  // namespace adder
