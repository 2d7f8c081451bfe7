// A plan lowered to a short list of fused ops over named activation buffers.
//
// The list is device-neutral: the interpreter (the oracle), the CPU executor and the CUDA executor
// all run it, for one token or many. An activation buffer holds one row of `width` f32 per token of
// the batch; the logits buffer one row per asked-for row. Buffers are shared by all layers.
//
// Op names, L being the layer number of the checkpoint:
//   embed
//   layers.L.attention.qkv    layers.L.attention.attend   layers.L.attention.o_proj
//   layers.L.attention.mix (of q, k and v with mixing)
//   layers.L.latent.q_a       layers.L.latent.q_b         layers.L.latent.kv_a
//   layers.L.latent.absorb    layers.L.latent.attend      layers.L.latent.expand
//   layers.L.latent.o_proj
//   layers.L.lightning.qkv    layers.L.lightning.scan     layers.L.lightning.gate
//   layers.L.lightning.out_proj
//   layers.L.mamba2.in_proj   layers.L.mamba2.scan        layers.L.mamba2.out_proj
//   layers.L.mamba1.in_proj   layers.L.mamba1.conv        layers.L.mamba1.x_proj
//   layers.L.mamba1.scan      layers.L.mamba1.out_proj
//   layers.L.mamba2.conv      layers.L.mamba2.selection (with a selection)
//   layers.L.short_conv.in_proj  layers.L.short_conv.conv  layers.L.short_conv.out_proj
//   layers.L.gated_delta.in_proj  layers.L.gated_delta.conv  layers.L.gated_delta.scan
//   layers.L.gated_delta.out_proj, and with low ranks decay_down, decay_up, gate_down, gate_up
//   layers.L.rg_lru.in_proj   layers.L.rg_lru.conv        layers.L.rg_lru.scan
//   layers.L.rg_lru.out_proj
//   layers.L.rwkv7.shift      layers.L.rwkv7.r (k, v)     layers.L.rwkv7.decay_down (rate, gate,
//   layers.L.rwkv7.decay_up   layers.L.rwkv7.scan         value_mix)   layers.L.rwkv7.output
//   layers.L.mlp.shift (with a shift_mix)
//   layers.L.mlp.output_gate  layers.L.mlp.gate_up      layers.L.mlp.down
//   layers.L.mlp.post_norm (of any mixer in a block with a post_norm)
//   layers.L.moe.router       layers.L.moe.gate_up        layers.L.moe.down
//   layers.L.moe.router_down  layers.L.moe.router_carry   layers.L.moe.router_fc1
//   layers.L.moe.router_fc2   (with a router_mlp)
//   head
//   layers.L.KIND.adapter_a   layers.L.KIND.adapter_b     (before what they are added to)
//   layers.L.residual.norm, layers.L.residual.update       (in a block with a rule of its own)
//   layer_inputs.embed, layer_inputs.projection, layer_inputs.sum
//   layers.L.join, layers.L.side.copy, layers.L.side.projection (what a block reads, when not x)
// A second mixer of one kind in a layer is called mlp_2 and so on. Within a block every op that
// reads the residual comes before the first that adds to it, since all mixers read the same x.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "model/bound_weights.h"
#include "model/plan.h"
#include "model/state_layout.h"

namespace adder {

using BufferId = int32_t;

struct Buffer {
  std::string name;
  int64_t width = 0;
};

// x = scale * embedding[token], through the norm if there is one.
struct EmbedOp {
  MatrixId embedding = kNoId;
  float scale = 1;
  BufferId output = kNoId;
  std::optional<RmsNorm> norm = std::nullopt;
};

enum class Epilogue {
  kStore,     // out = scale * y
  kAdd,       // out += scale * y
  kGated,     // y = gate | up: out = activation(gate) * up (scale 1), half as wide
  kActivate,  // out = activation(y) (scale 1)
};

// y = linear(norm(input)), then the epilogue. `norm` is applied as the input is read. With a
// row_gate (kGated and kActivate only), out is multiplied by sigmoid(row_gate).
struct LinearOp {
  BufferId input = kNoId;
  std::optional<RmsNorm> norm;
  Linear linear;
  Epilogue epilogue = Epilogue::kStore;
  float scale = 1;
  BufferId output = kNoId;
  // Only rows whose logits were asked for are computed (the head).
  bool logits_rows_only = false;
  Activation activation = Activation::kSilu;
  BufferId row_gate = kNoId;  // optional: [1]
  BufferId addend = kNoId;  // optional, as wide as y: added to y before an epilogue other than kAdd
  // Optional (kActivate only): out is multiplied element by element with columns [factor_column,
  // factor_column + width of out) of this buffer.
  BufferId factor = kNoId;
  int64_t factor_column = 0;
  // Without a norm, the input may be columns of a wider buffer: as many as the matrix has, from
  // this one on. -1: it is the whole buffer.
  int64_t input_begin = -1;
  float cap = 0;  // > 0 (kStore only): out becomes cap * tanh(out / cap)
};

// The inputs' rows side by side.
struct JoinOp {
  std::vector<BufferId> inputs;
  BufferId output = kNoId;
};

// Everything between in_proj and the gated norm: conv window roll, conv, SiLU, dt, state update, C
// contraction, D skip, multiplication by silu(z); with norm_before_gate the norm too. input:
// in_proj rows; output: [inner].
struct Mamba2Op {
  Mamba2 mixer;
  BufferId input = kNoId;
  BufferId output = kNoId;
  int conv_state = -1;  // index into StateLayout::recurrent
  int ssm_state = -1;
};

// The same of a mixer with a selection, from the norms of B, C and dt on; the convolution is a
// CausalConvOp of its own. output: [inner].
struct Mamba2SelectedOp {
  Mamba2 mixer;
  BufferId projected = kNoId;  // in_proj rows, for z
  BufferId convolved = kNoId;  // [inner]
  BufferId selected = kNoId;   // rows of selection.proj
  BufferId output = kNoId;
  int ssm_state = -1;
};

// Everything between x_proj and out_proj: the norms of dt, B and C, dt_proj and softplus, state
// update, C contraction, D skip, multiplication by silu(z). output: [inner].
struct Mamba1ScanOp {
  Mamba1 mixer;
  BufferId projected = kNoId;  // in_proj rows, for z
  BufferId convolved = kNoId;  // [inner]
  BufferId selected = kNoId;   // x_proj rows
  BufferId output = kNoId;
  int ssm_state = -1;
};

// output = total * (keep * (output + keep_bias) * keep_scale + scale * (y + add_bias) * add_scale)
// where y is the input or its norm, whose weight may be that of one group for all. Vectors that are
// absent change nothing. With keep 0 the output need not have been written, and may be the input.
struct UpdateOp {
  BufferId input = kNoId;
  std::optional<RmsNorm> norm;
  VectorId add_bias = kNoId;
  VectorId add_scale = kNoId;
  float scale = 1;
  float keep = 1;
  VectorId keep_bias = kNoId;
  VectorId keep_scale = kNoId;
  VectorId total = kNoId;  // [1]
  BufferId output = kNoId;
};

// output += scale * norm(input).
struct NormAddOp {
  BufferId input = kNoId;
  RmsNorm norm;
  float scale = 1;
  BufferId output = kNoId;
};

// A causal depthwise convolution and what is done to its channels right before and after it. Per
// channel c of an input row:
//   u = row[x + c], times row[gate_before + c]
//   y = bias[c] + sum over taps t of weight[t][c] * (u of d_conv - 1 - t tokens ago)
//   out[c] = y, or silu(y); times row[gate_after + c]
// output: [channels].
struct CausalConvOp {
  int64_t channels = 0;
  int64_t d_conv = 0;
  VectorId weight = kNoId;  // [d_conv, channels], time-major
  VectorId bias = kNoId;    // optional
  // Columns of the input row where the channels begin; -1: there is no such gate.
  int64_t x = 0;
  int64_t gate_before = -1;
  int64_t gate_after = -1;
  bool silu = false;
  BufferId input = kNoId;
  BufferId output = kNoId;
  int conv_state = -1;  // index into StateLayout::recurrent: the last d_conv - 1 values of u
};

// The mixing of q, k and v (plan.h). input: q | k | v1 | v2; output: q | k | v.
struct HeadMixOp {
  Attention mixer;
  BufferId input = kNoId;
  BufferId output = kNoId;
  int conv_state = -1;  // indices into StateLayout::recurrent
  int value_state = -1;
};

// Everything between the convolution and out_proj: norms of q and k, decay and beta, the state's
// update and answer, the norm of each head and the gate. output: [value_heads * value_dim].
struct GatedDeltaOp {
  GatedDelta mixer;
  BufferId projected = kNoId;  // in_proj rows
  BufferId convolved = kNoId;  // q | k | v
  BufferId decay = kNoId;      // [decay_rows()], with a decay_proj
  BufferId gate = kNoId;       // [value_heads * value_dim], with a gate_proj
  BufferId output = kNoId;
  int state = -1;  // index into StateLayout::recurrent
};

// y = norm(input). Per part p: output[p] = y + mix[p] * (the previous token's y - y), of a
// sequence's first token the previous y being 0. output: [parts * width].
struct TokenShiftOp {
  BufferId input = kNoId;
  std::optional<RmsNorm> norm;
  VectorId mix = kNoId;  // [parts, width]
  int64_t parts = 1;
  BufferId output = kNoId;
  int state = -1;  // index into StateLayout::recurrent: the previous y
};

// Gates, state update and output gate. output: [width].
struct RgLruOp {
  RgLru mixer;
  BufferId projected = kNoId;  // in_proj rows, for y
  BufferId convolved = kNoId;  // [width]
  BufferId output = kNoId;
  int state = -1;  // index into StateLayout::recurrent
};

// Everything between the projections and output. Buffers are [inner()]; first_value is that of v of
// the plan's first such mixer.
struct Rwkv7Op {
  Rwkv7 mixer;
  BufferId r = kNoId;
  BufferId k = kNoId;
  BufferId v = kNoId;
  BufferId decay = kNoId;
  BufferId rate = kNoId;
  BufferId gate = kNoId;
  BufferId value_mix = kNoId;    // with a value_mix
  BufferId first_value = kNoId;  // with a value_mix
  BufferId output = kNoId;
  int state = -1;  // index into StateLayout::recurrent
};

// Norms of q, k and v, RoPE, KV append, causal attention, the output gate. input: rows of qkv;
// output: [heads * head_dim].
struct AttentionOp {
  Attention mixer;
  BufferId input = kNoId;
  BufferId output = kNoId;
  int kv = -1;  // index into StateLayout::kv
};

// A matrix of its own for each head: head h reads columns [h * step, h * step + cols) of the input
// row; output: [heads * rows].
struct HeadsLinearOp {
  BufferId input = kNoId;
  int64_t step = 0;
  std::vector<MatrixId> matrices;
  BufferId output = kNoId;
};

// The norm of c, RoPE, append of c | kr, and causal attention of every head to them. output: per
// head the weighed sum of c, [heads * latent].
struct LatentAttentionOp {
  LatentAttention mixer;
  BufferId query = kNoId;     // rows of q_b, for qr
  BufferId absorbed = kNoId;  // [heads * latent]
  BufferId kv = kNoId;        // rows of kv_a
  BufferId output = kNoId;
  int state = -1;  // index into StateLayout::kv
};

// The recurrence of lightning attention and its norm. input: rows of qkv after the activation;
// output: [heads * head_dim].
struct LightningOp {
  LightningAttention mixer;
  BufferId input = kNoId;
  BufferId output = kNoId;
  int state = -1;  // index into StateLayout::recurrent
};

// Chooses experts. output: [2 * top_k]: weights, then expert indices as f32 (exact: experts <
// 2^24), in the order of the choice, best first.
struct RouterOp {
  BufferId input = kNoId;
  std::optional<RmsNorm> norm;
  Linear router;
  int64_t experts = 0;
  int64_t top_k = 0;
  Routing routing;
  BufferId output = kNoId;
};

// For each chosen expert j: out[j] = activation(gate) * up of norm(input), or activation(up) when
// not gated. output: [top_k, intermediate].
struct ExpertGateUpOp {
  BufferId input = kNoId;
  std::optional<RmsNorm> norm;
  BufferId routing = kNoId;
  int64_t top_k = 0;
  int64_t intermediate = 0;
  Activation activation = Activation::kSilu;
  bool gated = true;
  std::vector<MatrixId> gate_up;
  BufferId output = kNoId;
};

// out += scale * sum over chosen experts j of weight[j] * down_j input[j]; with `store` it is that
// sum.
struct ExpertDownOp {
  BufferId input = kNoId;
  BufferId routing = kNoId;
  int64_t top_k = 0;
  int64_t intermediate = 0;
  std::vector<MatrixId> down;
  float scale = 1;
  BufferId output = kNoId;
  bool store = false;
};

using OpBody = std::variant<EmbedOp, LinearOp, JoinOp, UpdateOp, NormAddOp, Mamba2Op,
                            Mamba2SelectedOp, CausalConvOp, Mamba1ScanOp, GatedDeltaOp,
                            TokenShiftOp, RgLruOp, Rwkv7Op, HeadMixOp, AttentionOp, HeadsLinearOp,
                            LatentAttentionOp, LightningOp, RouterOp, ExpertGateUpOp, ExpertDownOp>;

// What one op costs when it runs over a batch.
struct OpCost {
  int64_t weight_bytes = 0;  // read once per step, as Program::matrix_bytes counts
  int64_t state_bytes = 0;   // recurrent state read and written, KV read and appended
  int64_t flops = 0;         // multiply and add count as two
};

struct Op {
  std::string name;    // unique: "layers.3.mamba2.in_proj"
  int64_t layer = -1;  // -1: not in a layer
  OpBody body;
};

struct Program {
  std::shared_ptr<const Plan> plan;
  std::shared_ptr<const BoundWeights> weights;
  StateLayout layout;
  std::vector<Buffer> buffers;
  std::vector<Op> ops;
  BufferId residual = kNoId;
  BufferId logits = kNoId;
  // What reading each matrix costs, from an executor that keeps them in forms of its own. Empty: as
  // many bytes as the checkpoint has.
  std::vector<int64_t> matrix_bytes;

  // Index of the op called `name`. Throws Error naming close matches when there is none.
  int FindOp(const std::string& name) const;
};

// Lowers a plan. Throws Error when the plan and the weights do not fit together.
Program LowerPlan(std::shared_ptr<const Plan> plan, std::shared_ptr<const BoundWeights> weights);

// The cost of op `index` over a batch of `sequences` sequences with `tokens` tokens in all (spread
// evenly), each sequence having `context` positions before. How each op is counted:
//   embedding  only the rows of `tokens` tokens are read
//   head       one row of logits per sequence
//   Mamba      conv window and state are read and written once per sequence
//   delta rule its state is read and written once per sequence
//   conv       its window is read and written once per sequence
//   attention  KV of the context is read once per sequence, KV of the new positions written once
//   experts    as many distinct experts as `tokens` can choose at most
// Exponentials and other small per-channel terms are left out of the FLOPs. Throws Error for
// negative numbers or an index out of range.
OpCost CostOf(const Program& program, int index, int64_t tokens, int64_t sequences,
              int64_t context);
// Sum over all ops.
OpCost CostOf(const Program& program, int64_t tokens, int64_t sequences, int64_t context);

// Throws Error naming the op when it reads a buffer nothing wrote, widths or matrix shapes
// disagree, or a state index is wrong.
void VerifyProgram(const Program& program);

// The buffer an op writes.
BufferId OutputOf(const Op& op);

// A text for people, one op a line with its cost for one token.
std::string ProgramString(const Program& program);

}  // namespace adder
