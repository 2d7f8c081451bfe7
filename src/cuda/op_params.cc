#include "cuda/op_params.h"

namespace adder::cuda {
namespace {

constexpr int64_t kMostWindow = 1 << 30;

int Narrow(int64_t value) { return static_cast<int>(value); }

HeadNorm MakeHeadNorm(const std::optional<RmsNorm>& norm, int head_dim, const Program& program,
                      const DeviceWeights& weights) {
  if (!norm) return {};
  HeadNorm result;
  result.eps = norm->eps;
  if (norm->weight == kNoId) {
    result.size = result.part = head_dim;
    return result;
  }
  const size_t size = program.weights->vectors[static_cast<size_t>(norm->weight)].size();
  result.weight = weights.vector(norm->weight);
  result.size = static_cast<int>(size);
  result.part = static_cast<int>(size) / Narrow(norm->groups);
  return result;
}

template <class Params>
void SetRuns(const Slice& slice, Params& params) {
  params.runs = slice.runs;
  params.run_count = slice.run_count;
}

// The same, and which run each row belongs to.
template <class Params>
void SetRows(const Slice& slice, Params& params) {
  SetRuns(slice, params);
  params.rows = slice.rows;
  params.row_runs = slice.row_runs;
}

// What any attention's parameters have of the slice, its pages and the rotary embedding.
AttentionParams PagedParams(const std::optional<Rope>& rope, int kv, const Program& program,
                            const DeviceWeights& weights, const DeviceState& state,
                            const Slice& slice) {
  AttentionParams params;
  params.inverse_frequencies = weights.inverse_frequencies(rope);
  params.rotary_dim = rope ? Narrow(rope->rotary_dim) : 0;
  params.rotation_factor = rope ? rope->factor : 1;
  params.interleaved = rope && rope->interleaved;
  params.kv_bf16 = state.kv_bf16();
  params.kv_offset = state.KvOffset(kv);
  params.page_positions = Narrow(program.layout.page_positions);
  SetRows(slice, params);
  return params;
}

}  // namespace

int BufferWidth(const Program& program, BufferId id) {
  return Narrow(program.buffers[static_cast<size_t>(id)].width);
}

int BufferStride(const Program& program, BufferId id) {
  return (BufferWidth(program, id) + 3) / 4 * 4;
}

Mamba2Params ScanParams(const Mamba2& m, int ssm_state, const DeviceWeights& weights,
                        const DeviceState& state, const Slice& slice) {
  Mamba2Params params;
  params.heads = Narrow(m.heads);
  params.head_dim = Narrow(m.head_dim);
  params.d_state = Narrow(m.d_state);
  params.groups = Narrow(m.groups);
  params.d_conv = Narrow(m.d_conv);
  params.dt_min = m.dt_min;
  params.dt_max = m.dt_max;
  params.conv_weight = weights.vector(m.conv_weight);
  params.conv_bias = weights.vector(m.conv_bias);
  params.dt_bias = weights.vector(m.dt_bias);
  params.a = weights.vector(m.a);
  params.d = weights.vector(m.d);
  params.ssm_offset = state.RecurrentOffset(ssm_state);
  params.ssm_dtype = state.mamba2_dtype();
  SetRuns(slice, params);
  return params;
}

Mamba2Params MixerParams(const Mamba2Op& op, const DeviceWeights& weights, const DeviceState& state,
                         const Slice& slice) {
  Mamba2Params params = ScanParams(op.mixer, op.ssm_state, weights, state, slice);
  params.conv_offset = op.conv_state < 0 ? 0 : state.RecurrentOffset(op.conv_state);
  params.deferred_offset = state.DeferredOffset(op.ssm_state);
  return params;
}

GatedDeltaParams MixerParams(const GatedDeltaOp& op, const DeviceWeights& weights,
                             const DeviceState& state, const Slice& slice) {
  const GatedDelta& m = op.mixer;
  GatedDeltaParams params;
  params.key_heads = Narrow(m.key_heads);
  params.value_heads = Narrow(m.value_heads);
  params.key_dim = Narrow(m.key_dim);
  params.value_dim = Narrow(m.value_dim);
  params.decay_per_channel = m.decay_per_channel;
  params.gate_sigmoid = m.gate_activation == Activation::kSigmoid;
  params.qk_eps = m.qk_eps;
  params.query_scale = m.query_scale;
  params.beta_scale = m.beta_scale;
  params.norm_eps = m.norm.eps;
  params.dt_bias = weights.vector(m.dt_bias);
  params.a = weights.vector(m.a);
  params.norm_weight = weights.vector(m.norm.weight);
  params.state_offset = state.RecurrentOffset(op.state);
  SetRuns(slice, params);
  params.rows = slice.rows;
  return params;
}

FinishParams FinishRules(const LinearOp& op, const DeviceWeights& weights) {
  FinishParams finish;
  finish.input_scale = op.linear.input_scale;
  finish.bias = weights.vector(op.linear.bias);
  int end = 0;
  for (const RowScale& scale : op.linear.row_scales) {
    end += Narrow(scale.rows);
    finish.factor_ends[finish.factor_count] = end;
    finish.factors[finish.factor_count++] = scale.factor;
  }
  finish.gated = op.epilogue == Epilogue::kGated;
  finish.activates = op.epilogue == Epilogue::kActivate;
  finish.activation = op.activation;
  finish.scale = op.scale;
  finish.cap = op.cap;
  finish.adds = op.epilogue == Epilogue::kAdd;
  return finish;
}

HeadMixParams MixerParams(const HeadMixOp& op, const DeviceWeights& weights,
                          const DeviceState& state, const Slice& slice) {
  const HeadMixing& mixing = *op.mixer.mixing;
  HeadMixParams params;
  params.heads = Narrow(op.mixer.heads);
  params.kv_heads = Narrow(op.mixer.kv_heads);
  params.head_dim = Narrow(op.mixer.head_dim);
  params.taps = Narrow(mixing.taps);
  params.group_taps = Narrow(mixing.group_taps);
  params.conv_weight = weights.vector(mixing.conv_weight);
  params.conv_bias = weights.vector(mixing.conv_bias);
  params.group_weight = weights.vector(mixing.group_weight);
  params.group_bias = weights.vector(mixing.group_bias);
  params.conv_offset = state.RecurrentOffset(op.conv_state);
  params.value_offset = state.RecurrentOffset(op.value_state);
  SetRows(slice, params);
  return params;
}

CausalConvParams MixerParams(const CausalConvOp& op, const DeviceWeights& weights,
                             const DeviceState& state, const Slice& slice) {
  CausalConvParams params;
  params.channels = Narrow(op.channels);
  params.d_conv = Narrow(op.d_conv);
  params.x = Narrow(op.x);
  params.gate_before = Narrow(op.gate_before);
  params.gate_after = Narrow(op.gate_after);
  params.silu = op.silu;
  params.weight = weights.vector(op.weight);
  params.bias = weights.vector(op.bias);
  params.conv_offset = op.conv_state < 0 ? 0 : state.RecurrentOffset(op.conv_state);
  SetRuns(slice, params);
  return params;
}

RowNorm MakeRowNorm(const RmsNorm& norm, const Program& program, const DeviceWeights& weights) {
  RowNorm row;
  row.used = true;
  row.centered = norm.centered;
  row.groups = Narrow(norm.groups);
  row.eps = norm.eps;
  row.weight = weights.vector(norm.weight);
  if (norm.weight != kNoId) {
    const auto& weight = program.weights->vectors[static_cast<size_t>(norm.weight)];
    row.weight_size = static_cast<int>(weight.size());
  }
  row.bias = weights.vector(norm.bias);
  return row;
}

RowUpdateParams RulesOf(const UpdateOp& op, const Program& program, const DeviceWeights& weights) {
  RowUpdateParams update;
  if (op.norm) update.norm = MakeRowNorm(*op.norm, program, weights);
  update.add_bias = weights.vector(op.add_bias);
  update.add_scale = weights.vector(op.add_scale);
  update.scale = op.scale;
  update.keep = op.keep;
  update.keep_bias = weights.vector(op.keep_bias);
  update.keep_scale = weights.vector(op.keep_scale);
  update.total = weights.vector(op.total);
  return update;
}

SmallNorm MakeSmallNorm(const std::optional<RmsNorm>& norm, const DeviceWeights& weights) {
  if (!norm) return {};
  return {true, weights.vector(norm->weight), norm->eps};
}

Mamba1Params MixerParams(const Mamba1ScanOp& op, const DeviceWeights& weights,
                         const DeviceState& state, const Slice& slice) {
  const Mamba1& m = op.mixer;
  Mamba1Params params;
  params.inner = Narrow(m.inner);
  params.d_state = Narrow(m.d_state);
  params.a = weights.vector(m.a);
  params.d = weights.vector(m.d);
  params.b_norm = MakeSmallNorm(m.b_norm, weights);
  params.c_norm = MakeSmallNorm(m.c_norm, weights);
  params.ssm_offset = state.RecurrentOffset(op.ssm_state);
  SetRuns(slice, params);
  return params;
}

RgLruParams MixerParams(const RgLruOp& op, const DeviceWeights& weights, const DeviceState& state,
                        const Slice& slice) {
  const RgLru& m = op.mixer;
  RgLruParams params;
  params.width = Narrow(m.width);
  params.block = Narrow(m.block());
  params.decay_scale = m.decay_scale;
  params.gate_activation = m.gate_activation;
  params.input_weight = weights.vector(m.input_weight);
  params.input_bias = weights.vector(m.input_bias);
  params.recurrent_weight = weights.vector(m.recurrent_weight);
  params.recurrent_bias = weights.vector(m.recurrent_bias);
  params.decay = weights.vector(m.decay);
  params.state_offset = state.RecurrentOffset(op.state);
  SetRows(slice, params);
  return params;
}

TokenShiftParams MixerParams(const TokenShiftOp& op, const DeviceWeights& weights,
                             const DeviceState& state, const Slice& slice) {
  TokenShiftParams params;
  params.parts = Narrow(op.parts);
  params.mix = weights.vector(op.mix);
  params.state_offset = state.RecurrentOffset(op.state);
  SetRows(slice, params);
  return params;
}

Rwkv7Params MixerParams(const Rwkv7Op& op, const DeviceWeights& weights, const DeviceState& state,
                        const Slice& slice) {
  const Rwkv7& m = op.mixer;
  Rwkv7Params params;
  params.heads = Narrow(m.heads);
  params.head_dim = Narrow(m.head_dim);
  params.key_scale = weights.vector(m.key_scale);
  params.key_rate = weights.vector(m.key_rate);
  params.bonus = weights.vector(m.bonus);
  params.norm_weight = weights.vector(m.norm.weight);
  params.norm_bias = weights.vector(m.norm.bias);
  params.norm_eps = m.norm.eps;
  params.state_offset = state.RecurrentOffset(op.state);
  SetRuns(slice, params);
  return params;
}

RouteParams RuleOf(const RouterOp& op, const DeviceWeights& weights) {
  const Routing& routing = op.routing;
  RouteParams route;
  route.experts = Narrow(op.experts + routing.idle);
  route.idle = Narrow(routing.idle);
  route.top_k = Narrow(op.top_k);
  route.sigmoid = routing.scores == RouterScores::kSigmoid;
  route.choice_bias = weights.vector(routing.choice_bias);
  route.groups = Narrow(routing.groups);
  route.top_groups = Narrow(routing.top_groups);
  route.normalizes = routing.normalize;
  route.normalize_eps = routing.normalize_eps;
  route.scale = routing.scale;
  route.expert_scale = weights.vector(routing.expert_scale);
  return route;
}

AttentionParams MixerParams(const AttentionOp& op, const Program& program,
                            const DeviceWeights& weights, const DeviceState& state,
                            const Slice& slice) {
  const Attention& m = op.mixer;
  AttentionParams params = PagedParams(m.rope, op.kv, program, weights, state, slice);
  params.heads = Narrow(m.heads);
  params.kv_heads = Narrow(m.kv_heads);
  params.head_dim = Narrow(m.head_dim);
  params.scale = m.scale;
  params.output_gate = m.output_gate;
  params.q_norm = MakeHeadNorm(m.q_norm, params.head_dim, program, weights);
  params.k_norm = MakeHeadNorm(m.k_norm, params.head_dim, program, weights);
  params.v_norm = MakeHeadNorm(m.v_norm, params.head_dim, program, weights);
  params.norm_after_rotation = m.qk_norm_after_rope && (m.q_norm || m.k_norm);
  // Wider than any position: none.
  params.window = m.window > kMostWindow ? 0 : Narrow(m.window);
  params.values_from_keys = m.values_from_keys;
  params.owns_kv = m.owns_kv();
  return params;
}

LatentPlaceParams MixerParams(const LatentAttentionOp& op, const Program& program,
                              const DeviceWeights& weights, const DeviceState& state,
                              const Slice& slice) {
  const LatentAttention& m = op.mixer;
  LatentPlaceParams place;
  place.nope_dim = Narrow(m.nope_dim);
  place.norm_weight = weights.vector(m.kv_norm.weight);
  place.norm_eps = m.kv_norm.eps;
  AttentionParams& params = place.attention;
  params = PagedParams(m.rope, op.state, program, weights, state, slice);
  params.heads = Narrow(m.heads);
  params.kv_heads = 1;
  params.head_dim = Narrow(m.key_dim());
  params.latent = Narrow(m.latent);
  params.scale = m.scale;
  return place;
}

}  // namespace adder::cuda
